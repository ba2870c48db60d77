"""DeepSpeed's ds_config.json, also where another framework's file contains or names one.

Sources: deepspeed 0.19.8 (runtime/constants.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/tensor_parallel/config.py, runtime/activation_checkpointing/config.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.config.own_files.formats.words import optimizer_of
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, Key

NAME = "deepspeed"
TITLE = "DeepSpeed's ds_config.json"
SOURCE = "deepspeed 0.19.8"

DEVICES = {"none": None, "cpu": "host", "nvme": "disk"}
STAGES = {one: int(one) for one in (0, 1, 2, 3, "0", "1", "2", "3")}

KEYS = {
    "train_batch_size": Key("global_batch_size", "sequences per step over all ranks", None, "count"),
    "train_micro_batch_size_per_gpu": Key("micro_batch_size", "sequences per micro-batch", None, "count"),
    "gradient_accumulation_steps": Key("gradient_accumulation_steps", "micro-batches per step", None, "count"),
    "zero_optimization.stage": Key("zero", "1: states, 2: and gradients, 3: and parameters", 0, values=STAGES),
    "zero_optimization.offload_optimizer.device": Key("_optimizer_on", "where states lie", "none", values=DEVICES),
    "zero_optimization.offload_param.device": Key("_parameters_on", "where parameters lie", "none", values=DEVICES),
    "zero_optimization.cpu_offload": Key("_old_offload", "older name of offload_optimizer on the host", None, "flag"),
    "zero_optimization.cpu_offload_param": Key("_old_offload_param", "older name of offload_param", None, "flag"),
    "zero_optimization.mics_shard_size": Key("_mics", "ranks that share one full copy (MiCS)", -1, "int"),
    "bf16.enabled": Key("_bf16", "bf16 compute over fp32 masters", False, "flag"),
    "fp16.enabled": Key("_fp16", "fp16 compute over fp32 masters", False, "flag"),
    "torch_autocast.enabled": Key("_autocast", "torch's autocast over fp32 parameters", False, "flag"),
    "torch_autocast.dtype": Key("_autocast_dtype", "of autocast", None),
    "optimizer.type": Key("_optimizer", "optimizer", None),
    "tensor_parallel.autotp_size": Key("_tp", "tensor-parallel ranks", 0, "int"),
    "compile.deepcompile": Key("compile", "DeepCompile", False, "flag"),
}  # fmt: skip

MATTERS = {
    "zero_optimization.zero_hpz_partition_size": "ZeRO++ keeps a second copy of the parameters per node",
    "zero_optimization.zero_quantized_*": "ZeRO++ sends quantized values",
    "zero_optimization.zenflow*": "ZenFlow updates some parameters on the device and the rest later on the host",
    "zero_optimization.offload_optimizer.ratio": "only part of the states is on the host",
    "zero_optimization.offload_optimizer.super_offload": "SuperOffload's schedule of updates",
    "zero_optimization.memory_efficient_linear": "linear layers that keep less",
    "zero_optimization.mics_hierarchical_params_gather": "parameters are gathered in two steps",
    "activation_checkpointing.partition_activations": "kept activations are shared over tensor-parallel ranks",
    "activation_checkpointing.cpu_checkpointing": "kept activations go to the host",
    "activation_checkpointing.contiguous_memory_optimization": "kept activations lie in one buffer",
    "activation_checkpointing.number_checkpoints": "how many checkpoints the model's code makes",
    "bf16.immediate_grad_update": "when gradients are added to their fp32 sums",
    "bf16.bf16_master_weights_and_grads": "masters and gradients in bf16",
    "bf16.bf16_optimizer_states": "states in bf16",
    "fp16.fp16_master_weights_and_grads": "masters and gradients in fp16",
    "fp16.auto_cast": "inputs are cast",
    "data_types.grad_accum_dtype": "the type in which gradients are summed",
    "amp.*": "apex's mixed precision",
    "communication_data_type": "the type in which gradients are sent",
    "sparse_gradients": "embeddings' gradients are sparse",
    "sparse_attention.*": "sparse attention",
    "curriculum_learning.*": "sequences grow in length",
    "data_efficiency.*": "sequences change in length",
    "progressive_layer_drop.*": "layers are dropped",
    "compression_training.*": "compressed training",
    "elasticity.*": "the batch depends on the ranks",
    "autotuning.*": "DeepSpeed looks for a configuration itself",
    "pipeline.*": "how the pipeline's stages are made",
    "sequence_parallel_size": "Ulysses' ranks share each sequence",
    "flops_profiler.enabled": "its hooks slow the profiled step",
    "compile.*": "torch.compile's settings",
}

IRRELEVANT = """
    gradient_clipping prescale_gradients gradient_predivide_factor steps_per_print wall_clock_breakdown
    memory_breakdown dump_state zero_allow_untested_optimizer zero_force_ds_cpu_optimizer scheduler.* *_comment
    optimizer.params.* optimizer.params fp16.* bf16.check_overflow zero_optimization.allgather_partitions
    zero_optimization.*reduce_scatter zero_optimization.*bucket_size zero_optimization.overlap_comm
    zero_optimization.contiguous_gradients zero_optimization.round_robin_gradients
    zero_optimization.sub_group_size zero_optimization.*param_persistence_threshold
    zero_optimization.*max_live_parameters zero_optimization.*max_reuse_distance
    zero_optimization.*gather_*_weights_on_model_save zero_optimization.ignore_unused_parameters
    zero_optimization.elastic_checkpoint zero_optimization.load_from_fp32_weights zero_optimization.legacy_stage1
    zero_optimization.cpu_offload_use_pin_memory zero_optimization.offload_*.pin_memory
    zero_optimization.offload_*.buffer_* zero_optimization.offload_*.nvme_path zero_optimization.offload_*.pipeline*
    zero_optimization.offload_*.fast_init zero_optimization.offload_*.max_in_cpu zero_optimization.model_persistence_threshold
    zero_optimization.log_trace_cache_warnings tensorboard.* wandb.* csv_monitor.* comet.* monitor_config.*
    comms_logger.* comms_config.* flops_profiler.* dataloader_drop_last aio.* activation_checkpointing.profile
    activation_checkpointing.synchronize_checkpoint_boundary disable_allgather seed checkpoint.* zero3_init_flag
    load_universal_checkpoint use_node_local_storage
"""
"""Buckets and thresholds move at most a few hundred megabytes; suites/training/techniques/zero.py has the defaults."""

RENAMED = {"bfloat16.enabled": "bf16.enabled"}


def recognised(flat: Flat) -> int:
    """Return how many keys only DeepSpeed has."""
    own = {"train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "wall_clock_breakdown", "bf16.enabled",
           "fp16.enabled", "steps_per_print"}  # fmt: skip
    return len(own & flat.keys()) + sum(key.startswith("zero_optimization.") for key in flat)


def prepared(flat: Flat) -> Flat:
    """Return the values as they are."""
    return flat


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup; a file alone leaves recomputation and the sequence's length to the program."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    found |= section_fields(fields, unclear)
    if fields["_fp16"] and fields["_bf16"]:
        raise ValueError("bf16.enabled and fp16.enabled are both true; DeepSpeed takes one of them")
    found["precision"] = "bf16" if fields["_bf16"] else "fp16" if fields["_fp16"] else "fp32"
    if fields["_autocast"]:
        found["precision"] = (
            "fp16" if "16" in str(fields.get("_autocast_dtype")).replace("bf", "") else "bf16"
        )
    batch = {name: found.get(name) for name in BATCH}
    dp = None
    if all(batch.values()):
        at_once = found["micro_batch_size"] * found["gradient_accumulation_steps"]
        if found["global_batch_size"] % at_once:
            raise ValueError(
                f"train_batch_size {found['global_batch_size']} is no multiple of train_micro_batch_size_per_gpu "
                f"{found['micro_batch_size']} × gradient_accumulation_steps {found['gradient_accumulation_steps']}"
            )
        dp = found["global_batch_size"] // at_once
    elif not batch["gradient_accumulation_steps"] and not batch["global_batch_size"]:
        found["gradient_accumulation_steps"] = 1
    if found.get("micro_batch_size") is None:
        unclear.append(
            NotUnderstood("train_micro_batch_size_per_gpu", None, "left to the program; 1 is taken")
        )
    return {**found, "dp": dp, "not_understood": unclear}


BATCH = ("global_batch_size", "micro_batch_size", "gradient_accumulation_steps")


def section_fields(fields: Mapping[str, object], unclear: list[NotUnderstood]) -> Fields:
    """Return what a DeepSpeed configuration says besides batch and precision."""
    found: Fields = {"engine": "zero", "zero": fields["zero"]}
    on = {"optimizer": fields.get("_optimizer_on"), "parameters": fields.get("_parameters_on")}
    if fields.get("_old_offload"):
        on["optimizer"] = on["optimizer"] or "host"
    if fields.get("_old_offload_param"):
        on["parameters"] = on["parameters"] or "host"
    found["offload"] = tuple(
        sorted(name if where == "host" else f"{name}:{where}" for name, where in on.items() if where)
    )
    if on["parameters"] and found["zero"] != 3:
        raise ValueError("zero_optimization.offload_param needs stage 3")
    if on["optimizer"] and not found["zero"]:
        raise ValueError("zero_optimization.offload_optimizer needs stage 1, 2 or 3")
    if fields.get("_optimizer"):
        found["optimizer"] = optimizer_of("optimizer.type", str(fields["_optimizer"]), unclear)
    tp, mics = int(str(fields.get("_tp") or 0)), int(str(fields.get("_mics") or 0))
    found["tp"] = max(1, tp)
    if mics > 0:
        found["shard_size"] = mics
    if not found["zero"]:
        found["engine"] = "ddp"
    return found


def prefixed(prefix: str) -> tuple[dict[str, Key], dict[str, str], str]:
    """Return the table under a prefix, its fields too, for a framework whose file contains a ds_config."""
    keys = {f"{prefix}{key}": row._replace(field=f"_ds_{row.field.lstrip('_')}") for key, row in KEYS.items()}
    matters = {f"{prefix}{key}": why for key, why in MATTERS.items()}
    return keys, matters, " ".join(f"{prefix}{one}" for one in IRRELEVANT.split())


def own_section(fields: Fields) -> Fields:
    """Return the fields of a contained ds_config, by the names that `section_fields` takes."""
    public = {"zero", "compile", *BATCH}
    inner = {name.removeprefix("_ds_"): value for name, value in fields.items() if name.startswith("_ds_")}
    return {name if name in public else f"_{name}": value for name, value in inner.items()}


def written(setup: OwnSetup) -> Flat:
    """Return DeepSpeed's keys of a set-up; raises ValueError where it cannot express it."""
    for name, value in (("pp", setup.pp), ("cp", setup.cp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"ds_config.json has no key for {name} {value}; the program sets it")
    if setup.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"ds_config.json has no key for precision {setup.precision}")
    return section_written(setup) | {
        "train_micro_batch_size_per_gpu": setup.micro_batch_size,
        **({"train_batch_size": setup.global_batch_size} if setup.global_batch_size else {}),
        **(
            {"gradient_accumulation_steps": setup.gradient_accumulation_steps}
            if setup.gradient_accumulation_steps
            else {}
        ),
        "bf16.enabled": setup.precision == "bf16",
        "fp16.enabled": setup.precision == "fp16",
        "optimizer.type": {"adamw": "AdamW", "muon": "Muon"}.get(setup.optimizer, setup.optimizer),
        **({"compile.deepcompile": True} if setup.compile else {}),
    }


def section_written(setup: OwnSetup) -> dict[str, object]:
    """Return the keys of sharding and offload."""
    flat: dict[str, object] = {"zero_optimization.stage": setup.zero}
    devices = {"host": "cpu", "disk": "nvme"}
    for one in setup.offload:
        what, _, where = one.partition(":")
        if what == "activations":
            raise ValueError("ds_config.json has no key for activations on the host; the program sets it")
        name = {"optimizer": "offload_optimizer", "parameters": "offload_param"}[what]
        flat[f"zero_optimization.{name}.device"] = devices[where or "host"]
    if setup.tp > 1:
        flat["tensor_parallel.autotp_size"] = setup.tp
    if setup.shard_size:
        flat["zero_optimization.mics_shard_size"] = setup.shard_size
    return flat
