"""Megatron Bridge's YAML of overrides, and the YAML of NeMo up to 2.

Sources: Megatron Bridge commit 067f987 of August 2026 (training/config.py, training/mixed_precision.py) and
NeMo commit 8cfedd7 of September 2025 (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml). Most of
their keys are Megatron-LM's arguments in sections.
"""

from __future__ import annotations

from typing import Any

from harness.frameworks import megatron
from harness.frameworks.table import Fields, Flat, Parts, flag_of, yaml_tree
from harness.frameworks.words import filled
from harness.question import Adapters, Question

SECTIONS = ("model", "train", "trainer", "ddp", "dist", "optimizer", "comm_overlap")
"""Whose keys are Megatron-LM's arguments."""

PRECISIONS = ("bf16_mixed", "fp16_mixed", "bf16_with_fp8", "bf16_with_mxfp8", "bf16_with_nvfp4")
"""How names of Megatron Bridge's mixed precision begin (training/mixed_precision.py)."""

RECIPES = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}

OWN = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "num_layers"),
    *("global_batch_size", "micro_batch_size", "seq_length", "encoder_seq_length", "train_iters"),
)


def recognised(flat: Flat) -> int:
    """Return how many keys only these have: Megatron-LM's arguments in sections."""
    count = sum(f"{section}.{key}" in flat for section in ("model", "train", "dataset") for key in OWN)
    more = {"ddp.use_distributed_optimizer", "exp_manager.exp_dir", "mixed_precision"} & flat.keys()
    return count + 2 * bool(more) if count else 0


def prepared(flat: Flat) -> Flat:
    """Return the values without their sections, with references to other keys filled in."""
    values: dict[str, Any] = {}
    for key, value in filled(flat).items():
        section, dot, name = key.partition(".")
        if key == "dataset.seq_length":
            values.setdefault("seq_length", value)
        elif value is not None or flat[key] is None:  # else a reference to what the file does not have
            values[name if dot and section in SECTIONS else key] = value
    return {key: value for key, value in values.items() if key != "fp8" or value}


def spelled(flat: Flat) -> Flat:
    """Return the values in their sections, by Megatron-Core's names."""
    tree = yaml_tree("megatron_bridge")
    sections = {key: section for section, keys in tree["sections"].items() for key in keys.split()}
    names = {key: (sections.get(key, "model"), tree["names"].get(key, key)) for key in flat}
    return {".".join(names[key]).removeprefix("none."): value for key, value in flat.items()}


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    _precision(parts)
    if "_activation" in parts:
        parts["_gated"] = "swiglu" in parts["_activation"]
    name = str(parts.get("_optim") or parts["_optimizer"])
    parts["_optimizer"] = "adam" if "adam" in name.lower() or name == "mcore_distributed_optim" else name
    if parts.get("_distributed") is not None:
        parts["_distributed"] = flag_of("use_distributed_optimizer", parts["_distributed"])
    else:  # Megatron Bridge's default, and NeMo's by the optimizer's name
        parts["_distributed"] = "distributed" in name or "_optim" not in parts
    if parts.get("_nemo_fsdp"):
        parts["_torch_fsdp2"] = True
    if parts.get("_granularity") is None:
        parts.pop("_method", None)  # NeMo recomputes by a granularity alone
    parts.setdefault("_bias", str(parts.get("_norm")).lower() != "rmsnorm")  # as its models have it
    fields = megatron.settle(parts)
    return fields | ({"adapters": Adapters(rank=parts["_rank"])} if parts.get("_rank") else {})


def _precision(parts: Parts) -> None:
    """Set Megatron-LM's parts of the precision by a recipe of Megatron Bridge, or NeMo's `precision`."""
    recipe, precision = str(parts.get("_recipe") or ""), str(parts.get("_precision") or "").lower()
    if recipe and not recipe.startswith((*PRECISIONS, "{")):
        raise ValueError(f"mixed_precision is {recipe!r}; its names begin with {', '.join(PRECISIONS)}")
    if recipe or "bf16" in precision or not precision:
        parts["_bf16"] = "fp16" not in recipe or "bf16" in recipe
    parts["_fp16"] = not parts["_bf16"] and ("fp16" in recipe or precision.startswith("16"))
    if "fp8" in recipe or "nvfp4" in recipe:
        parts["_fp8"] = "hybrid"
        parts["_fp8_recipe"] = "mxfp8" if "mxfp8" in recipe else parts.get("_fp8_recipe")
        if "nvfp4" in recipe:
            parts["_fp4"] = "e2m1"


def parts_of(question: Question) -> Fields:
    """Return Megatron Bridge's parts of a question; raises ValueError where they cannot express it."""
    switches = dict.fromkeys(("_bf16", "_fp16", "_fp8", "_fp8_recipe", "_fp4"))
    return {
        **megatron.parts_of(question),
        **switches,
        "model_name": None,
        "_distributed": question.zero > 0 and question.sharing != "fsdp2",
        "_recipe": RECIPES[question.precision],
    }
