"""Megatron Bridge's YAML of overrides, and the YAML of NeMo up to 2.

Sources: Megatron Bridge commit 067f987 of August 2026 (training/config.py, training/mixed_precision.py) and
NeMo commit 8cfedd7 of September 2025 (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml). Most of
their keys are Megatron-LM's arguments in sections.
"""

from __future__ import annotations

from typing import Any

from harness.config.own_files.formats import megatron
from harness.config.own_files.setup import OwnSetup
from harness.config.own_files.table import Fields, Flat, flag_of

NAME = "megatron_bridge"
TITLE = "Megatron Bridge's or NeMo's YAML"
SOURCE = "Megatron Bridge 067f987"

SECTIONS = ("model", "train", "trainer", "ddp", "dist", "optimizer", "comm_overlap")
"""Whose keys are Megatron-LM's arguments."""

PRECISIONS = ("bf16_mixed", "fp16_mixed", "bf16_with_fp8", "bf16_with_mxfp8", "bf16_with_nvfp4")
"""How names of Megatron Bridge's mixed precision begin (training/mixed_precision.py)."""


def recognised(flat: Flat) -> int:
    """Return how many keys only these have: Megatron-LM's arguments in sections."""
    own = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "global_batch_size",
        "micro_batch_size",
        "seq_length",
        "context_parallel_size",
        "train_iters",
        "encoder_seq_length",
        "num_layers",
    )
    found = sum(f"{section}.{key}" in flat for section in ("model", "train", "dataset") for key in own)
    return (
        found
        + 2 * bool({"ddp.use_distributed_optimizer", "exp_manager.exp_dir", "mixed_precision"} & flat.keys())
        if found
        else 0
    )


def prepared(flat: Flat) -> Flat:
    """Return the values without their sections, with references to other keys filled in."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        section, dot, name = key.partition(".")
        if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
            path = value[2:-1]
            value = flat.get(f"model{path}" if path.startswith(".") else path, value)
            if isinstance(value, str) and value.startswith("${"):
                continue
        if key == "dataset.seq_length":
            values.setdefault("seq_length", value)
        elif key == "optimizer.optimizer":
            values["optimizer"] = value
        elif section in SECTIONS and dot:
            values[name] = value
        else:
            values[key] = value
    if values.get("fp8") is False or values.get("fp8") is None:
        values.pop("fp8", None)
    return values


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    fields = dict(fields)
    recipe = str(fields.get("_recipe") or "")
    precision = str(fields.get("_precision") or "").lower()
    if recipe and not recipe.startswith(PRECISIONS) and not recipe.startswith("{"):
        raise ValueError(f"mixed_precision is {recipe!r}; its names begin with {', '.join(PRECISIONS)}")
    if recipe or "bf16" in precision or not precision:
        fields["_bf16"] = "fp16" not in recipe or "bf16" in recipe
    fields["_fp16"] = not fields["_bf16"] and ("fp16" in recipe or precision.startswith("16"))
    if "fp8" in recipe or "nvfp4" in recipe:
        fields["_fp8"] = "hybrid"
        fields["_fp8_recipe"] = "mxfp8" if "mxfp8" in recipe else fields.get("_fp8_recipe")
        if "nvfp4" in recipe:
            fields["_fp4"] = "e2m1"
    if "_activation" in fields:
        fields["_swiglu"] = "swiglu" in fields["_activation"]
    if fields.get("_bias") is False or fields.get("_bias_") is False:
        fields["_no_bias"] = True
    if "_tied" in fields:
        fields["_untied"] = not fields["_tied"]
    name = str(fields.get("_optim") or fields["_optimizer"])
    fields["_optimizer"] = "adam" if "adam" in name.lower() else name
    fields["_distributed"] = _distributed(fields, name)
    if fields.get("_nemo_fsdp"):
        fields["_torch_fsdp2"] = True
    rank = fields.pop("_rank", None)
    found = megatron.settle(fields, flat)
    if rank:
        from harness.config.own_files.setup import Adapters

        found["adapters"] = Adapters(rank=rank)
    return found


def _distributed(fields: Fields, name: str) -> bool:
    """Return whether states are sharded: by default in Megatron Bridge, by the optimizer's name in NeMo."""
    if fields.get("_distributed") is not None:
        return flag_of("use_distributed_optimizer", fields["_distributed"])
    return "distributed" in name or "_optim" not in fields


def written(setup: OwnSetup) -> Flat:
    """Return Megatron Bridge's keys of a set-up; raises ValueError where they cannot express it."""
    arguments = {key: value for key, value in megatron.arguments_of(setup).items() if value is not None}
    recipe = {
        "bf16": "bf16_mixed",
        "fp16": "fp16_mixed",
        "fp8": "bf16_with_fp8_current_scaling_mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
        "nvfp4": "bf16_with_nvfp4_mixed",
    }.get(setup.precision)
    if recipe is None:
        raise ValueError(f"Megatron Bridge has no recipe for precision {setup.precision}")
    for one in ("bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format"):
        arguments.pop(one, None)
    names = {new: old for old, new in {**BRIDGE_NAMES}.items()}
    flat: dict[str, object] = {}
    for key, value in arguments.items():
        section = {
            "micro_batch_size": "train",
            "global_batch_size": "train",
            "use_distributed_optimizer": "ddp",
            "use_megatron_fsdp": "ddp",
            "data_parallel_sharding_strategy": "ddp",
            "use_torch_fsdp2": "dist",
            "num_distributed_optimizer_instances": "ddp",
            "optimizer_cpu_offload": "optimizer",
            "optimizer": "optimizer",
        }.get(key, "model")
        flat[f"{section}.{names.get(key, key)}"] = value
    flat.setdefault("ddp.use_distributed_optimizer", False)
    flat["mixed_precision"] = recipe
    return flat


BRIDGE_NAMES = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_moe_experts": "num_experts",
}
"""Megatron-Core's names of arguments."""
