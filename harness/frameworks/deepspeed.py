"""DeepSpeed's ds_config.json, also where another framework's file contains or names one.

Sources: deepspeed 0.19.8 (runtime/constants.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/tensor_parallel/config.py, runtime/activation_checkpointing/config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.table import Fields, Parts
from harness.frameworks.words import optimizer_of
from harness.question import Question

BATCH = ("global_batch_size", "micro_batch_size", "gradient_accumulation_steps")


def settle(parts: Parts) -> Fields:
    """Return fields of Question; recomputation and the sequence's length stand in the program."""
    fields = section_fields(parts, parts)
    if parts["_fp16"] and parts["_bf16"]:
        raise ValueError("bf16.enabled and fp16.enabled are both true; DeepSpeed takes one of them")
    fields["precision"] = "bf16" if parts["_bf16"] else "fp16" if parts["_fp16"] else "fp32"
    if parts["_autocast"]:
        narrow = "16" in str(parts.get("_autocast_dtype")).replace("bf", "")
        fields["precision"] = "fp16" if narrow else "bf16"
    switches = (parts.flat.get("bf16.enabled"), parts.flat.get("fp16.enabled"))
    if "auto" in switches and fields["precision"] == "fp32":
        fields["precision"] = "bf16"
        parts.assume("precision", "bf16.enabled is auto, so the program decides; bf16 is taken")
    if parts.get("micro_batch_size") is None:
        parts.assume("micro_batch_size", "train_micro_batch_size_per_gpu is left to the program; 1 is taken")
    return fields | _batch(parts)


def _batch(parts: Parts) -> Fields:
    """Return the data-parallel ranks that the three sizes of a batch give, or the steps where they do not."""
    whole, micro, steps = (parts.get(name) for name in BATCH)
    if whole and micro and steps:
        if whole % (micro * steps):
            raise ValueError(
                f"train_batch_size {whole} is no multiple of train_micro_batch_size_per_gpu {micro} × "
                f"gradient_accumulation_steps {steps}"
            )
        return {"dp": whole // (micro * steps)}
    return {} if whole or steps else {"gradient_accumulation_steps": 1}


def section_fields(section: Mapping[str, Any], parts: Parts) -> Fields:
    """Return what a DeepSpeed configuration says besides batch and precision."""
    fields: Fields = {"zero": section["zero"], "sharing": "zero" if section["zero"] else "ddp"}
    on = {"optimizer": section.get("_optimizer_on"), "parameters": section.get("_parameters_on")}
    if section.get("_old_offload"):
        on["optimizer"] = on["optimizer"] or "host"
    if section.get("_old_offload_param"):
        on["parameters"] = on["parameters"] or "host"
    if on["parameters"] and fields["zero"] != 3:
        raise ValueError("zero_optimization.offload_param needs stage 3")
    if on["optimizer"] and not fields["zero"]:
        raise ValueError("zero_optimization.offload_optimizer needs stage 1, 2 or 3")
    fields["offload"] = tuple(
        sorted(name if where == "host" else f"{name}:{where}" for name, where in on.items() if where)
    )
    if section.get("_optimizer"):
        fields["optimizer"] = optimizer_of("optimizer.type", str(section["_optimizer"]), parts)
    fields["tp"] = max(1, int(section.get("_tp") or 0))
    if int(section.get("_mics") or 0) > 0:
        fields["shard_size"] = int(section["_mics"])
    return fields


def is_contained(parts: Parts) -> bool:
    """Return whether a file of another framework contains a ds_config, or names one that was read."""
    return any(key.startswith("deepspeed.") for key in parts.flat)


def own_section(parts: Parts) -> Fields:
    """Return the parts of a contained ds_config by the names that `section_fields` takes."""
    inner = {name.removeprefix("_ds_"): value for name, value in parts.items() if name.startswith("_ds_")}
    return {name if name in ("zero", *BATCH) else f"_{name}": value for name, value in inner.items()}


def section_parts(question: Question) -> Fields:
    """Return the parts of sharding and offload."""
    on = {what: where or "host" for what, _, where in (one.partition(":") for one in question.offload)}
    if "activations" in on:
        raise ValueError("ds_config.json has no key for activations on the host; the program sets it")
    return {
        "_zero": question.zero,
        "_optimizer_on": on.get("optimizer"),
        "_parameters_on": on.get("parameters"),
        "_tp": question.tp if question.tp > 1 else None,
        "_mics": question.shard_size,
    }


def contained(section: Fields) -> Fields:
    """Return parts of a ds_config as those of a file that contains one."""
    return {f"_ds{name}": value for name, value in section.items()}


def parts_of(question: Question) -> Fields:
    """Return DeepSpeed's parts of a question; raises ValueError where it cannot express it."""
    if question.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"ds_config.json has no key for precision {question.precision}")
    return {
        **section_parts(question),
        "_bf16": question.precision == "bf16",
        "_fp16": question.precision == "fp16",
        "_optimizer": {"adamw": "AdamW", "muon": "Muon"}.get(question.optimizer, question.optimizer),
    }
