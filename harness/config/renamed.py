"""Names that records and commands had in an earlier version, and the names that replaced them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MODEL_FIELDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "batch": "micro_batch_size",
    "micro_batches": "gradient_accumulation_steps",
    "clip_norm": "max_grad_norm",
    "tensor_ranks": "tp_size",
    "optimizer_loop": "optimizer_impl",
}
"""Fields of a workload that took Hugging Face's names in version 2."""

SUITE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "memory": {"ranks": "dp_size", "train": "measurable", "program": "simulated_device"},
    "offload": {"ranks": "dp_size", "folder": "offload_dir", "budget_B": "device_memory_budget_B"},
}
"""Further fields of one suite's workloads."""

SETTINGS = {"plain_steps": "warmup_steps"}
"""Settings of optimizations."""

CONDITIONS = {"kernels": {"batch": "micro_batch_size"}, "memory": {"held": "state"}}
"""Conditions of one suite's records. A suite may rename them within a schema version."""

SUITE_SETTINGS = {
    "interconnect": {"outer_rate": "outer_learning_rate"},
    "interconnect_formula": {"batches": "gradient_accumulation_steps"},
}
"""Settings of one suite's optimizations."""

CONF_KEYS = {
    "arms": "variants",
    "together": "interleave",
    "own_process_when": "isolate_if",
    "rounds_by": "rounds_field",
    "grows_by": "size_fields",
    "always": "reference_workloads",
    "given": "hf_defaults",
    "half_width": "target_ci_half_width",
    "gpu": "device",
}
"""Keys of the configuration. `gpu`, whose values were true and false, is `device: cuda` and `any` now."""


def present_name(name: str, allowed: Iterable[str]) -> str | None:
    """Return the one of `allowed` that replaced `name`, None where `name` is not an earlier name."""
    tables = (MODEL_FIELDS, SETTINGS, CONF_KEYS, *SUITE_FIELDS.values(), *SUITE_SETTINGS.values())
    known = {table[name] for table in tables if name in table}
    return next((one for one in allowed if one in known), None)
