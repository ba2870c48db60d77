"""LLaMA-Factory's YAML of version 1, which USE_V1=1 switches on.

Sources: LLaMA-Factory commit ff6d4d1 of August 2026 (v1/config/*.py, v1/core/model_engine.py and
base_trainer.py, v1/plugins/model_plugins/peft.py and quantization.py,
v1/plugins/trainer_plugins/distributed/*.py). Without dist_config nothing casts: full fine-tuning is in fp32.
"""

from __future__ import annotations

from harness.frameworks import deepspeed
from harness.frameworks.table import Fields, Parts, is_off
from harness.frameworks.words import adapters_of, offload_of
from harness.question import Question


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    how, peft = parts.get("_dist"), parts.get("_type")
    fields: Fields = {"sharing": "ddp"}
    narrow = parts["_bf16"] if how else peft is not None
    if how == "zero":
        if not deepspeed.is_contained(parts):
            raise ValueError("dist_config.config_file was not found: give it too, as config=[FILE,ds.json]")
        fields |= deepspeed.section_fields(parts, parts["_ds_zero"])
        narrow = not is_off(parts.flat.get("deepspeed.bf16.enabled", "auto"))
    elif how:
        fields |= {"sharing": "fsdp2", "zero": 3 if parts["_reshard"] else 2}
        fields["offload"] = offload_of(parts)
    fields["precision"] = "bf16" if narrow else "fp32"
    whole = {"dtype": "bf16"} if how == "fsdpturbo" and narrow else {}  # shard_model casts every parameter
    if whole and not peft:
        fields["states"] = "bf16"
    if "optim_config.name" not in parts.flat:  # core/base_trainer.py: AdamW with torch's own defaults
        fields["optimizer_impl"] = "foreach"
    if peft == "freeze":
        fields["adapters"] = adapters_of(Parts({}), rank=32 * abs(parts["_layers"]) or 8, **whole)
    elif peft:
        base = "bf16" if "_method" not in parts else "int8" if parts.get("_bits") == 8 else "nf4"
        fields["adapters"] = adapters_of(parts, base=base, **whole)
    if {"pref_loss", "pref_beta"} & parts.flat.keys() or "dpo" in parts.name:
        # trainers/dpo_trainer.py: a sequence is the chosen and the rejected answer, the reference a deep copy
        reference = parts.flat.get("pref_loss", "sigmoid") == "sigmoid"
        fields |= {"objective": "dpo", "forward_passes": int(reference)}
        if reference and peft != "lora":
            fields["reference_weight_B"] = 2 if peft or whole else 4
    fields["shorter"] = "dynamic" not in parts["_batching"]  # core/utils/collation.py, pad_and_truncate
    if "_method" in parts and not peft:
        raise ValueError("quant_config is given without peft_config: quantized weights cannot be trained")
    return fields


def parts_of(question: Question) -> Fields:
    """Return version 1's parts of a question; raises ValueError where it cannot express it."""
    if question.sharing not in ("fsdp2", "ddp"):
        raise ValueError(f"version 1 writes sharing fsdp2 or ddp; it is {question.sharing}")
    for field, only in (("states", "fp32"), ("fused_loss", False), ("tp", 1)):
        if getattr(question, field) != only:
            raise ValueError(f"version 1 has no key for {field} {getattr(question, field)}")
    shards, adapters = question.sharing == "fsdp2", question.adapters
    bits = {"nf4": 4, "int8": 8}.get(adapters.base) if adapters else None
    return {
        "_dist": "fsdp2" if shards else None,
        "_reshard": question.zero == 3 or not shards,
        "_bf16": question.precision == "bf16",
        "_type": "lora" if adapters else None,
        "_method": bits and "bnb",
        "_bits": bits,
    }
