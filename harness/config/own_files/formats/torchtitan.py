"""torchtitan's TOML, as of its last release with TOML files, and its older names.

Sources: torchtitan v0.2.2 (torchtitan/config/job_config.py, distributed/pipeline_parallel.py,
distributed/utils.py, models/llama3/infra/parallelize.py), v0.1.0 and the commit 3247841 of November 2024
(torchtitan/config_manager.py) for the older names.
"""

from __future__ import annotations

from harness.config.own_files.models import name_among
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "torchtitan"
TITLE = "torchtitan's TOML"
SOURCE = "torchtitan v0.2.2"


SCHEDULES = {
    "1f1b": 1,
    "gpipe": 1,
    "interleaved1f1b": 2,
    "loopedbfs": 2,
    "interleavedzerobubble": 2,
    "zbvzerobubble": 2,
    "dualpipev": 2,
}
"""Stages per rank of a schedule, where layers per stage are not given (pipeline_parallel.py)."""


def recognised(flat: Flat) -> int:
    """Return how many keys only torchtitan has."""
    sections = {"model.flavor", "activation_checkpoint.mode", "job.dump_folder", "metrics.enable_tensorboard"}
    return len(sections & flat.keys()) + sum(
        key.startswith("parallelism.") and key.endswith("_degree") for key in flat
    )


def prepared(flat: Flat) -> Flat:
    """Return the values, with the old switch of float8 as a converter."""
    values = dict(flat)
    if values.pop("float8.enable_float8_linear", False):
        values["model.converters"] = [*values.get("model.converters", []), "float8"]
    return values


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    found |= _data_parallel(fields) | _batches(fields) | _stages(fields, flat)
    found |= _recompute(fields, unclear)
    found["model_name"] = f"{fields['_name']}/{fields['_flavor']}"
    found["sequence_parallel"] = found["tp"] > 1
    converters = fields["_converters"]
    converters = converters.split(",") if isinstance(converters, str) else converters
    joined = " ".join(converters)
    if "float8" in joined:
        found["precision"] = "fp8"
    if "mx" in joined.replace("mm", ""):
        found["precision"] = "mxfp8"
    found["offload"] = ("optimizer", "parameters") if fields["_offload"] else ()
    found["compile"] = found["compile"] and "model" in fields["_components"]
    return {**found, "not_understood": unclear}


def _data_parallel(fields: Fields) -> Fields:
    replicas, shard, cp = fields["_replicas"], fields["_shard"], fields["cp"]
    if shard == 0 or shard < -1:
        raise ValueError(f"parallelism.data_parallel_shard_degree is {shard}; it must be -1 or at least 1")
    sharded = shard != 1 or cp > 1
    reshard = fields["_reshard"]
    kept = reshard == "never" or (reshard == "default" and fields["pp"] > 1)
    return {
        "dp": None if shard == -1 else replicas * shard,
        "zero": (2 if kept else 3) if sharded else 0,
        "engine": "fsdp2" if sharded else "ddp",
        "replicas": replicas if sharded else 1,
    }


def _batches(fields: Fields) -> Fields:
    local, whole = fields["_local"], fields["_global"]
    whole = None if whole == -1 else whole
    if fields["pp"] == 1:
        return {"micro_batch_size": local, "global_batch_size": whole} | (
            {} if whole else {"gradient_accumulation_steps": 1}
        )
    micro = fields["_pp_micro"]
    if local % micro:
        raise ValueError(
            f"training.local_batch_size is {local}; it must be a multiple of "
            f"parallelism.pipeline_parallel_microbatch_size, {micro}"
        )
    return {"micro_batch_size": micro, "global_batch_size": whole} | (
        {} if whole else {"gradient_accumulation_steps": local // micro}
    )


def _stages(fields: Fields, flat: Flat) -> Fields:
    if fields["pp"] == 1:
        return {}
    schedule = fields["_schedule"].lower()
    if schedule not in SCHEDULES:
        raise ValueError(
            f"parallelism.pipeline_parallel_schedule is {fields['_schedule']!r}; known: "
            f"{', '.join(SCHEDULES)}"
        )
    found: Fields = {"schedule": schedule, "virtual_stages": SCHEDULES[schedule]}
    if "_layers_per_stage" in fields:
        found["layers_per_stage"] = fields["_layers_per_stage"]
    return found


def _recompute(fields: Fields, unclear: list[NotUnderstood]) -> Fields:
    mode, every = fields["_recompute"], fields["_every"]
    if mode == "memory_budget":
        unclear.append(
            NotUnderstood("activation_checkpoint.mode", mode, "the compiler chooses what is recomputed")
        )
        mode = "none"
    if mode == "selective" and every != "op":
        if not every.isdigit() or int(every) < 1:
            raise ValueError(
                f"activation_checkpoint.selective_ac_option is {every!r}; it must be op or at least 1"
            )
        return {"recompute": "full", "recompute_every": int(every)}
    return {"recompute": mode}


def written(setup: OwnSetup) -> Flat:
    """Return torchtitan's keys of a set-up; raises ValueError where it cannot express it."""
    name, _, flavor = _flavor_of(setup).partition("/")
    flat: dict[str, object] = {"model.name": name, "model.flavor": flavor} if flavor else {}
    if setup.precision in ("fp8", "mxfp8"):
        flat["model.converters"] = [
            "quantize.linear.float8" if setup.precision == "fp8" else "quantize.linear.mx"
        ]
    flat |= {
        "training.local_batch_size": setup.micro_batch_size,
        "training.seq_len": setup.seq_len or 2048,
        "training.dtype": "bfloat16" if setup.states == "bf16" else "float32",
        "training.mixed_precision_param": "float32" if setup.precision == "fp32" else "bfloat16",
        "training.enable_cpu_offload": "parameters" in setup.offload,
        "parallelism.data_parallel_replicate_degree": setup.replicas,
        "parallelism.data_parallel_shard_degree": setup.dp // setup.replicas if setup.dp else -1,
        "parallelism.fsdp_reshard_after_forward": {2: "never", 3: "always"}.get(setup.zero, "default"),
        "parallelism.tensor_parallel_degree": setup.tp,
        "parallelism.pipeline_parallel_degree": setup.pp,
        "parallelism.context_parallel_degree": setup.cp,
        "parallelism.expert_parallel_degree": setup.ep,
        "parallelism.expert_tensor_parallel_degree": setup.etp,
        "optimizer.implementation": setup.optimizer_impl.replace("_", "-"),
        "optimizer.early_step_in_backward": setup.optimizer_in_backward,
        "activation_checkpoint.mode": setup.recompute,
        "activation_checkpoint.selective_ac_option": "op",
        "compile.enable": setup.compile,
    }
    if setup.recompute == "full" and setup.recompute_every > 1:
        flat["activation_checkpoint.mode"] = "selective"
        flat["activation_checkpoint.selective_ac_option"] = str(setup.recompute_every)
    if setup.zero == 0 and setup.dp is not None:
        flat["parallelism.data_parallel_replicate_degree"] = setup.dp
        flat["parallelism.data_parallel_shard_degree"] = 1
    return flat | _written_batches(setup)


SIZES = {
    "llama3": "8B 70B 405B",
    "llama4": "17bx16e 17bx128e",
    "deepseek_v3": "16B 236B 671B",
    "qwen3": "0.6B 1.7B 4B 8B 14B 32B 30B-A3B 235B-A22B",
    "gpt_oss": "20b 120b",
}
"""Its flavors of published shapes by family (v0.2.2, torchtitan/models/*/__init__.py)."""


def _flavor_of(setup: OwnSetup) -> str:
    if setup.format == NAME or not setup.model_name:
        return setup.model_name
    flavors = [f"{family}/{size}" for family, sizes in SIZES.items() for size in sizes.split()]
    found = name_among(setup.model_name, flavors)
    if found is None:
        raise ValueError(f"torchtitan has no flavor of {setup.model_name}; it has {', '.join(flavors)}"[:290])
    return found


def _written_batches(setup: OwnSetup) -> dict[str, object]:
    if setup.pp == 1:
        if setup.global_batch_size:
            return {"training.global_batch_size": setup.global_batch_size}
        if (setup.gradient_accumulation_steps or 1) > 1:
            if setup.dp is None:
                raise ValueError("torchtitan's gradient accumulation needs global_batch_size, so dp, too")
            steps = setup.gradient_accumulation_steps or 1
            return {"training.global_batch_size": setup.micro_batch_size * steps * setup.dp}
        return {}
    schedule = {one.lower(): one for one in ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble")}
    flat: dict[str, object] = {
        "parallelism.pipeline_parallel_microbatch_size": setup.micro_batch_size,
        "parallelism.pipeline_parallel_schedule": schedule.get(setup.schedule, setup.schedule),
        "training.local_batch_size": setup.micro_batch_size * (setup.gradient_accumulation_steps or setup.pp),
    }
    if setup.layers_per_stage:
        flat["parallelism.pipeline_parallel_layers_per_stage"] = setup.layers_per_stage
    if setup.global_batch_size:
        flat["training.global_batch_size"] = setup.global_batch_size
    return flat
