"""DeepSpeed's ds_config.json, also where another framework's file contains or names one.

Sources: deepspeed 0.19.8 (runtime/constants.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/tensor_parallel/config.py, runtime/activation_checkpointing/config.py).
"""

from __future__ import annotations

from typing import Any

from harness.frameworks.table import Fields, Parts, number_of
from harness.frameworks.words import note_compile, precision_of
from harness.question import DEEPSPEED_BUCKET, Question

BATCH = ("global_batch_size", "micro_batch_size", "gradient_accumulation_steps")


def settle(parts: Parts) -> Fields:
    """Return fields of Question; recomputation and the sequence's length stand in the program."""
    fields = section_fields(parts, parts["zero"], "_") | {"precision": precision_of(parts)}
    if parts["_autocast"]:
        narrow = "16" in str(parts.get("_autocast_dtype")).replace("bf", "")
        fields["precision"] = "fp16" if narrow else "bf16"
    switches = (parts.flat.get("bf16.enabled"), parts.flat.get("fp16.enabled"))
    if "auto" in switches and fields["precision"] == "fp32":
        fields["precision"] = "bf16"
        parts.assume("precision", "bf16.enabled is auto, so the program decides; bf16 is taken")
    note_compile("compile.deepcompile", parts["compile"], fields, parts)
    return fields | _batch(parts)


def _batch(parts: Parts) -> Fields:
    """Return the data-parallel ranks that the three sizes of a batch give, or the steps where they do not."""
    whole, micro, steps = (parts.get(name) for name in BATCH)
    if not (whole and micro and steps):
        return {} if whole or steps else {"gradient_accumulation_steps": 1}
    if whole % (micro * steps):
        raise ValueError(
            f"train_batch_size {whole} is no multiple of train_micro_batch_size_per_gpu {micro} × "
            f"gradient_accumulation_steps {steps}"
        )
    return {"dp": whole // (micro * steps)}


def section_fields(parts: Parts, stage: int, prefix: str = "_ds_") -> Fields:
    """Return what a DeepSpeed configuration says besides batch and precision; `prefix`: of its parts."""

    def part(name: str) -> Any:
        return parts.get(f"{prefix}{name}")

    fields: Fields = {"zero": stage, "sharing": "zero" if stage else "ddp"}
    if not any(str(key).endswith("stage") for key in parts.flat):
        parts.assume(
            "sharing", "zero_optimization.stage is in no key: DeepSpeed's default, 0, shards nothing"
        )
    on = {
        "optimizer": part("optimizer_on") or ("host" if part("old_offload") else None),
        "parameters": part("parameters_on") or ("host" if part("old_offload_param") else None),
    }
    if on["parameters"] and stage != 3:
        raise ValueError("zero_optimization.offload_param needs stage 3")
    if on["optimizer"] and not stage:
        raise ValueError("zero_optimization.offload_optimizer needs stage 1, 2 or 3")
    fields["offload"] = tuple(
        sorted(name if where == "host" else f"{name}:{where}" for name, where in on.items() if where)
    )
    if (bucket := _bucket(parts, stage, prefix)) is not None:
        fields["reduce_bucket"] = bucket
    if not stage:  # runtime/fp16/unfused_optimizer.py: both copies, and fp32 gradients in the update
        why = "without ZeRO DeepSpeed keeps 16-bit weights next to fp32 ones; torch's DDP is taken"
        parts.leave_out("zero_optimization.stage", 0, why, "raises", "lowers")
    if "_ds_optimizer" in parts:
        fields["optimizer"] = parts["_ds_optimizer"]
    fields["tp"] = max(1, int(part("tp") or 0))
    if int(part("mics") or 0) > 0:
        fields["shard_size"] = int(part("mics"))
    return fields


MOST_ELEMENTS = 10**12
"""Of a bucket: 2 TB in bf16, more than a device has."""


def _bucket(parts: Parts, stage: int, prefix: str) -> int | None:
    """Return the elements of a bucket of gradients, 0 for "auto", None for the default.

    A second one where stages 1 and 2 overlap is noted; of "auto", `models.with_bucket` bounds it. Stages 1
    and 2 do not look at allgather_bucket_size where torch has all_gather_into_tensor (runtime/utils.py,
    all_gather_dp_groups), and stage 3 has none.
    """
    given = parts.get(f"{prefix}reduce_bucket") if stage else None
    key = "zero_optimization.reduce_bucket_size"
    size = DEEPSPEED_BUCKET if given is None else number_of(key, given, "number")
    if not 1 <= size <= MOST_ELEMENTS:
        raise ValueError(f"{key} is {str(given)[:40]}; it must be from 1 to {MOST_ELEMENTS:,}")
    filled = any(key.endswith("reduce_bucket_size") and one == "auto" for key, one in parts.flat.items())
    if stage in (1, 2) and str(parts.get(f"{prefix}overlap_comm")).lower() == "true":
        why = "reductions overlap with the backward pass, in a second bucket"
        parts.leave_out("overlap_comm", True, why, "raises", "lowers", most_B=4.0 * size)
    if stage and filled:
        return 0
    return None if size == DEEPSPEED_BUCKET else int(size)


def is_contained(parts: Parts) -> bool:
    """Return whether a file of another framework contains a ds_config, or names one that was read."""
    return any(key.startswith("deepspeed.") for key in parts.flat)


def section_parts(question: Question, prefix: str = "_ds_") -> Fields:
    """Return the parts of sharding and offload, by names that begin with `prefix`."""
    on = {what: where or "host" for what, _, where in (one.partition(":") for one in question.offload)}
    if "activations" in on:
        raise ValueError("ds_config.json has no key for activations on the host; the program sets it")
    parts = {
        "zero": question.zero,
        "optimizer_on": on.get("optimizer"),
        "parameters_on": on.get("parameters"),
        "tp": question.tp if question.tp > 1 else None,
        "mics": question.shard_size,
        "reduce_bucket": "auto" if question.reduce_bucket == 0 else question.reduce_bucket,
    }
    return {f"{prefix}{name}": value for name, value in parts.items()}


def parts_of(question: Question) -> Fields:
    """Return DeepSpeed's parts of a question; raises ValueError where it cannot express it."""
    return {
        **section_parts(question, "_"),
        "_bf16": question.precision == "bf16",
        "_fp16": question.precision == "fp16",
    }
