"""torchtitan's TOML, as of its last release with TOML files, and its older names.

Sources: torchtitan v0.2.2 (torchtitan/config/job_config.py, distributed/pipeline_parallel.py,
distributed/utils.py, models/llama3/infra/parallelize.py), v0.1.0 and the commit 3247841 of November 2024
(torchtitan/config_manager.py) for the older names.
"""

from __future__ import annotations

from harness.config.own_files.formats.words import DTYPES
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, Key

NAME = "torchtitan"
TITLE = "torchtitan's TOML"
SOURCE = "torchtitan v0.2.2"

IMPLEMENTATIONS = {"fused": "fused", "foreach": "foreach", "for-loop": "for_loop"}

KEYS = {
    "model.name": Key("_name", "the model's family", "llama3"),
    "model.flavor": Key("_flavor", "the model's size", "debugmodel"),
    "model.converters": Key("_converters", "what replaces linear layers: float8, mx", [], "any"),
    "optimizer.name": Key("optimizer", "optimizer", "AdamW", values={"adamw": "adamw", "adam": "adamw"}),
    "optimizer.implementation": Key("optimizer_impl", "torch's implementation", "fused", values=IMPLEMENTATIONS),
    "optimizer.early_step_in_backward": Key("optimizer_in_backward", "each parameter is updated in the backward pass", False, "flag"),
    "training.local_batch_size": Key("_local", "sequences per data-parallel rank and micro-batch", 8, "count"),
    "training.global_batch_size": Key("_global", "sequences per step; -1: local × dp", -1, "int"),
    "training.seq_len": Key("seq_len", "tokens per sequence", 2048, "count"),
    "training.enable_cpu_offload": Key("_offload", "parameters, gradients and states on the host", False, "flag"),
    "training.dtype": Key("states", "of parameters and states", "float32", values=DTYPES),
    "training.mixed_precision_param": Key("precision", "of matmuls", "bfloat16", values=DTYPES),
    "parallelism.data_parallel_replicate_degree": Key("_replicas", "groups with full copies", 1, "count"),
    "parallelism.data_parallel_shard_degree": Key("_shard", "ranks of FSDP2; -1: the rest", -1, "int"),
    "parallelism.fsdp_reshard_after_forward": Key(
        "_reshard",
        "whether gathered parameters are freed after the forward pass",
        "default",
        values={"default": "default", "always": "always", "never": "never"},
    ),
    "parallelism.tensor_parallel_degree": Key("tp", "tensor-parallel ranks", 1, "count"),
    "parallelism.pipeline_parallel_degree": Key("pp", "pipeline ranks", 1, "count"),
    "parallelism.pipeline_parallel_schedule": Key("_schedule", "pipeline schedule", "1F1B"),
    "parallelism.pipeline_parallel_microbatch_size": Key("_pp_micro", "sequences per micro-batch of the pipeline", 1, "count"),
    "parallelism.pipeline_parallel_layers_per_stage": Key("_layers_per_stage", "layers per virtual stage", None, "count"),
    "parallelism.context_parallel_degree": Key("cp", "context-parallel ranks", 1, "count"),
    "parallelism.expert_parallel_degree": Key("ep", "expert-parallel ranks", 1, "count"),
    "parallelism.expert_tensor_parallel_degree": Key("etp", "tensor-parallel ranks of an expert", 1, "count"),
    "activation_checkpoint.mode": Key(
        "_recompute",
        "activation checkpointing",
        "selective",
        values={one: one for one in ("none", "selective", "full", "memory_budget")},
    ),
    "activation_checkpoint.selective_ac_option": Key("_every", "every n-th layer, or op", "2"),
    "activation_checkpoint.memory_budget": Key("_budget", "of the compiler's partitioner", None, "number"),
    "compile.enable": Key("compile", "torch.compile", False, "flag"),
    "compile.components": Key("_components", "what is compiled", ["model", "loss"], "any"),
}  # fmt: skip
"""Their keys. What begins with an underscore is settled below."""

MATTERS = {
    "parallelism.enable_async_tensor_parallel": "tensor parallelism overlaps with its collectives",
    "parallelism.disable_loss_parallel": "logits are gathered over the tensor-parallel ranks",
    "parallelism.module_fqns_per_model_part": "layers per stage are listed by hand",
    "parallelism.pipeline_parallel_split_points": "layers per stage are listed by hand",
    "parallelism.pipeline_parallel_schedule_csv": "the schedule comes from another file",
    "parallelism.expert_parallel_comm_backend": "another all-to-all (deepep)",
    "parallelism.enable_compiled_autograd": "the backward pass is compiled",
    "quantize.*enable_fsdp_float8_all_gather": "parameters are gathered in float8",
    "quantize.*recipe_name": "how float8 values are scaled",
    "quantize.grouped_mm.*": "the experts' products in float8 or mxfp8",
    "fault_tolerance.*": "replicas that may fail",
    "experimental.custom_*": "other code is imported",
    "job.custom_config_module": "other code is imported",
    "memory_estimation.*": "the run is an estimate of its memory",
    "debug.deterministic": "deterministic kernels, some of them slower",
}

IRRELEVANT = """
    job.* profiling.* metrics.* model.hf_assets_path model.tokenizer_path model.print_after_conversion model.norm_type
    optimizer.lr optimizer.beta? optimizer.eps optimizer.weight_decay lr_scheduler.* training.dataset*
    training.dataloader.* training.max_norm training.steps training.warmup_steps training.gc_* training.seed
    training.mixed_precision_reduce training.deterministic checkpoint.* comm.* validation.* debug.*
    parallelism.pipeline_parallel_*_stage_less_layers parallelism.context_parallel_rotate_method
    parallelism.context_parallel_load_balancer parallelism.pipeline_parallel_expert_parallel_overlap
    parallelism.enable_loss_parallel activation_checkpoint.* compile.backend compile.*
    quantize.*precompute_float8_* quantize.*filter_fqns quantize.*emulate quantize.*force_recompute_fp8_*
    quantize.*mxfp8_dim1_* quantize.*fp8_dim1_* quantize.*scaling_type_*
"""

RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "experimental.enable_compiled_autograd": "parallelism.enable_compiled_autograd",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.enable_loss_parallel": "parallelism.enable_loss_parallel",
    "training.debug_moe_force_load_balance": "debug.moe_force_load_balance",
    **{
        f"training.{one}": f"parallelism.{one}"
        for one in (
            "data_parallel_replicate_degree",
            "data_parallel_shard_degree",
            "tensor_parallel_degree",
            "pipeline_parallel_degree",
            "context_parallel_degree",
        )
    },
    **{
        f"experimental.{one}": f"parallelism.{one}"
        for one in (
            "context_parallel_degree",
            "enable_async_tensor_parallel",
            "pipeline_parallel_schedule",
            "pipeline_parallel_split_points",
        )
    },
    **{
        f"{old}.{one}": f"quantize.linear.{new}.{one}"
        for old, new in (("float8", "float8"), ("mx", "mx"))
        for one in (
            "enable_fsdp_float8_all_gather",
            "precompute_float8_dynamic_scale_for_fsdp",
            "force_recompute_fp8_weight_in_bwd",
            "recipe_name",
            "filter_fqns",
            "emulate",
            "scaling_type_input",
            "scaling_type_weight",
            "scaling_type_grad_output",
            "use_fp8_dim1_cast_triton_kernel",
        )
    },
}

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
            f"parallelism.pipeline_parallel_schedule is {fields['_schedule']!r}; known: {', '.join(SCHEDULES)}"
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
    name, _, flavor = setup.model_name.partition("/")
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
    }  # fmt: skip
    if setup.recompute == "full" and setup.recompute_every > 1:
        flat["activation_checkpoint.mode"] = "selective"
        flat["activation_checkpoint.selective_ac_option"] = str(setup.recompute_every)
    if setup.zero == 0 and setup.dp is not None:
        flat["parallelism.data_parallel_replicate_degree"] = setup.dp
        flat["parallelism.data_parallel_shard_degree"] = 1
    return flat | _written_batches(setup)


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
