"""torchtitan's TOML, as of its last release with TOML files, and its older names.

Sources: torchtitan v0.2.2 (torchtitan/config/job_config.py, distributed/pipeline_parallel.py,
distributed/utils.py, models/llama3/infra/parallelize.py), v0.1.0 and the commit 3247841 of November 2024
(torchtitan/config_manager.py) for the older names.
"""

from __future__ import annotations

from harness.frameworks.models import name_in
from harness.frameworks.table import Fields, Flat, Parts
from harness.question import Question

ONE_STAGE = ("1f1b", "gpipe")
"""Schedules with one stage per rank where layers per stage are not given; others have two
(pipeline_parallel.py)."""

CONVERTERS = {"fp8": ["quantize.linear.float8"], "mxfp8": ["quantize.linear.mx"]}


def prepared(flat: Flat) -> Flat:
    """Return the values, with the old switch of float8 as a converter."""
    values = dict(flat)
    if values.pop("float8.enable_float8_linear", False):
        values["model.converters"] = [*values.get("model.converters", []), "float8"]
    return values


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields = _data_parallel(parts) | _batches(parts) | _recompute(parts)
    if parts["pp"] == 1:
        fields |= {"schedule": "1f1b", "layers_per_stage": None}
    elif parts["schedule"] not in ONE_STAGE:
        fields["virtual_stages"] = 2
    fields["model_name"] = f"{parts['_name']}/{parts['_flavor']}"
    fields["sequence_parallel"] = parts["tp"] > 1
    converters = parts["_converters"]
    joined = " ".join(converters.split(",") if isinstance(converters, str) else converters)
    if "float8" in joined:
        fields["precision"] = "fp8"
    if "mx" in joined.replace("mm", ""):
        fields["precision"] = "mxfp8"
    fields["compile"] = parts["compile"] and "model" in parts["_components"]
    return fields


def _data_parallel(parts: Parts) -> Fields:
    replicas, shard = parts["_replicas"], parts["_shard"]
    if shard == 0 or shard < -1:
        raise ValueError(f"parallelism.data_parallel_shard_degree is {shard}; it must be -1 or at least 1")
    sharded = shard != 1 or parts["cp"] > 1
    reshard = parts["_reshard"]
    kept = reshard == "never" or (reshard == "default" and parts["pp"] > 1)
    return {
        "dp": None if shard == -1 else replicas * shard,
        "zero": (2 if kept else 3) if sharded else 0,
        "sharing": "fsdp2" if sharded else "ddp",
        "replicas": replicas if sharded else 1,
    }


def _batches(parts: Parts) -> Fields:
    local, micro = parts["_local"], parts["_pp_micro"] if parts["pp"] > 1 else parts["_local"]
    if local % micro:
        raise ValueError(
            f"training.local_batch_size is {local}; it must be a multiple of "
            f"parallelism.pipeline_parallel_microbatch_size, {micro}"
        )
    if parts["_global"] != -1:
        return {"micro_batch_size": micro, "global_batch_size": parts["_global"]}
    return {"micro_batch_size": micro, "gradient_accumulation_steps": local // micro}


def _recompute(parts: Parts) -> Fields:
    mode, every = parts["_recompute"], parts["_every"]
    if mode == "selective" and every != "op":
        if not every.isdigit() or int(every) < 1:
            raise ValueError(
                f"activation_checkpoint.selective_ac_option is {every!r}; it must be op or at least 1"
            )
        return {"recompute": "full", "recompute_every": int(every)}
    return {"recompute": mode}


def parts_of(question: Question) -> Fields:
    """Return torchtitan's parts of a question; raises ValueError where it cannot express it."""
    name = question.model_name
    if name and question.format != "torchtitan":
        name = name_in("torchtitan", name)
    family, _, flavor = name.partition("/")
    dp, replicas = question.dp, question.replicas
    alike = question.zero == 0 and dp is not None  # no rank shards
    every = question.recompute == "full" and question.recompute_every > 1
    return {
        "_name": family if flavor else None,
        "_flavor": flavor or None,
        "_converters": CONVERTERS.get(question.precision),
        "precision": "bf16" if question.precision in CONVERTERS else question.precision,
        "_replicas": dp if alike else replicas,
        "_shard": 1 if alike else dp // replicas if dp else -1,
        "_reshard": {2: "never", 3: "always"}.get(question.zero, "default"),
        "_recompute": "selective" if every else question.recompute,
        "_every": str(question.recompute_every) if every else "op",
        **_batch_parts(question),
    }


def _batch_parts(question: Question) -> Fields:
    micro, steps = question.micro_batch_size, question.gradient_accumulation_steps
    if question.pp > 1:
        return {
            "_local": micro * (steps or question.pp),
            "_global": question.global_batch_size,
            "_pp_micro": micro,
        }
    whole = question.global_batch_size
    if whole is None and (steps or 1) > 1:
        if question.dp is None:
            raise ValueError("torchtitan's gradient accumulation needs global_batch_size, so dp, too")
        whole = micro * (steps or 1) * question.dp
    return {"_local": micro, "_global": whole, "schedule": None, "layers_per_stage": None}
