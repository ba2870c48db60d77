"""Megatron-LM's arguments: a command line, a shell script, or YAML.

Sources: Megatron-LM commit d98e8a6 of August 2026 (megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/model_parallel_config.py) and its examples.
"""

from __future__ import annotations

from typing import Any

from harness.config.own_files.formats.megatron_model import EXPERTS, model_config, written_model
from harness.config.own_files.formats.words import optimizer_of
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, flag_of

NAME = "megatron"
TITLE = "Megatron-LM's arguments"
SOURCE = "Megatron-LM d98e8a6"

SECTIONS = ("MODEL_ARGS.", "language_model.", "model_parallel.")
"""Of its tests' model_config.yaml and of --yaml-cfg."""


TRAINING = {
    "num_layers",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "use_mcore_models",
    "train_iters",
}
"""Keys of which arguments of training have at least one; tools that load a model have parallel sizes."""


def recognised(flat: Flat) -> int:
    """Return how many keys only Megatron-LM has."""
    names = prepared(flat).keys()
    own = {
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "num_layers",
        "global_batch_size",
        "micro_batch_size",
        "seq_length",
        "use_mcore_models",
        "num_attention_heads",
    }
    return len(own & names) if TRAINING & names else 0


def prepared(flat: Flat) -> Flat:
    """Return the values by the names that argparse gives them."""
    values = {}
    for key, value in flat.items():
        for section in SECTIONS:
            key = key.removeprefix(section)
        values[key.lstrip("-").replace("-", "_")] = value
    return values


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    found |= parallel_fields(fields, unclear) | precision_fields(fields)
    found["sequence_parallel"] = found["sequence_parallel"] and found["tp"] > 1
    found["optimizer"] = optimizer_of("optimizer", fields["_optimizer"], unclear)
    found["recompute"] = recompute_of(fields, unclear)
    found["recompute_modules"] = modules_of(fields, found["recompute"])
    found["dispatcher"] = dispatcher_of(fields, unclear)
    found["attention"] = attention_of(fields)
    found["model"] = model_config(fields, unclear)
    found["model_source"] = "sizes in the file" if found["model"] else ""
    found["devices"] = devices_of(fields)
    if fields.get("_offload_states"):
        found["offload"] = ("optimizer",)
    if fields.get("_offload_activations"):
        found["offload"] = (*found.get("offload", ()), "activations")
    if "seq_len" not in found:
        unclear.append(NotUnderstood("seq_length", None, "is missing"))
    return {**found, "not_understood": unclear}


def attention_of(fields: Fields) -> str:
    """Return explicit where scores are kept: unfused backends, and local layers without flash attention."""
    local = fields["_impl"] == "local" and fields["_backend"] == "auto" and not fields.get("_flash")
    return "explicit" if local or fields["_backend"] in ("unfused", "local") else "flash"


def devices_of(fields: Fields) -> int | None:
    """Return the ranks that a launcher's options or world_size give; None without them."""
    if fields.get("_world"):
        return int(fields["_world"])
    per_node = fields.get("_per_node")
    return int(per_node) * int(fields.get("_nodes") or 1) if per_node else None


def parallel_fields(fields: Fields, unclear: list[NotUnderstood]) -> Fields:
    """Return what is sharded, and pipeline stages."""
    found: Fields = {"engine": "megatron", "zero": 1 if fields["_distributed"] else 0}
    found["etp"] = fields.get("_etp") or fields["tp"]
    strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    if fields.get("_fsdp"):
        strategy = str(fields["_strategy"])
        if strategy not in strategies:
            raise ValueError(
                f"data_parallel_sharding_strategy is {strategy!r}; known: {', '.join(strategies)}"
            )
        found["zero"] = strategies[strategy]
    if fields.get("_torch_fsdp2"):
        found |= {"zero": 2 if fields.get("_no_reshard") else 3, "engine": "fsdp2"}
    if fields.get("_zero_stage") is not None:
        if fields["_zero_stage"] not in (0, 1, 2, 3):
            raise ValueError(f"zero_stage is {fields['_zero_stage']}; it must be 0, 1, 2 or 3")
        found |= {"zero": fields["_zero_stage"], "engine": "zero" if fields["_zero_stage"] else "megatron"}
    if (fields.get("_instances") or 1) > 1:
        found["replicas"] = fields["_instances"]
    found["virtual_stages"] = _virtual_stages(fields)
    if found["virtual_stages"] > 1:
        found["schedule"] = "interleaved1f1b"
    return found


def _virtual_stages(fields: Fields) -> int:
    pp = fields["pp"]
    if fields.get("_virtual"):
        return int(fields["_virtual"]) if pp > 1 else 1
    layers, per_stage = fields.get("_layers"), fields.get("_layers_per_virtual")
    if not per_stage or pp == 1:
        return 1
    if not layers:
        raise ValueError("num_layers_per_virtual_pipeline_stage is given, but num_layers is missing")
    if layers % (pp * per_stage):
        raise ValueError(
            f"num_layers {layers} is no multiple of pipeline_model_parallel_size {pp} × "
            f"num_layers_per_virtual_pipeline_stage {per_stage}"
        )
    return int(layers // (pp * per_stage))


def precision_fields(fields: Fields) -> Fields:
    """Return the type of matmuls; masters and states are in fp32."""
    if fields.get("_fp4"):
        return {"precision": "nvfp4"}
    if fields.get("_fp8"):
        return {"precision": "mxfp8" if fields.get("_fp8_recipe") == "mxfp8" else "fp8"}
    return {"precision": "bf16" if fields["_bf16"] else "fp16" if fields["_fp16"] else "fp32"}


def recompute_of(fields: Fields, unclear: list[NotUnderstood]) -> str:
    """Return what is recomputed: none, selective or full."""
    granularity = fields.get("_granularity")
    if fields.get("_recompute_activations"):
        granularity = "selective"
    if fields.get("_checkpoint_activations") or (granularity is None and fields.get("_method")):
        granularity = "full"
    if granularity in (None, "none", "null"):
        return "none"
    if granularity not in ("selective", "full"):
        raise ValueError(f"recompute_granularity is {granularity!r}; it must be selective or full")
    if granularity == "full" and fields.get("_method") == "block":
        why = "some layers per stage alone are recomputed; all are taken"
        unclear.append(NotUnderstood("recompute_method", "block", why))
    if (
        granularity == "full"
        and (fields.get("_recompute_layers") or 1) > 1
        and fields.get("_method") == "uniform"
    ):
        why = "several layers are one unit of recomputation; one is taken"
        unclear.append(NotUnderstood("recompute_num_layers", fields["_recompute_layers"], why))
    return str(granularity)


def modules_of(fields: Fields, recompute: str) -> tuple[str, ...]:
    """Return what selective recompute names, () for its default; shells give one string or several."""
    modules = fields.get("_modules") or ()
    names = modules.strip("[]").replace(",", " ").split() if isinstance(modules, str) else modules
    return tuple(map(str, names)) if recompute == "selective" and list(names) != ["core_attn"] else ()


def dispatcher_of(fields: Fields, unclear: list[NotUnderstood]) -> str:
    """Return how tokens reach their experts; allgather is the default where the model has experts."""
    default = "allgather" if fields.get("_experts") else "alltoall"
    kind = str(fields.get("_dispatcher") or default)
    backend = str(fields.get("_flex") or "deepep")
    if kind == "flex" and backend != "deepep":
        unclear.append(NotUnderstood("moe_flex_dispatcher_backend", backend, "taken as deepep"))
    found = {"alltoall": "alltoall", "allgather": "allgather", "flex": "deepep"}.get(kind)
    if found is None:
        raise ValueError(f"moe_token_dispatcher_type is {kind!r}; it must be alltoall, allgather or flex")
    return found


def written(setup: OwnSetup) -> Flat:
    """Return Megatron-LM's arguments of a set-up; raises ValueError where they cannot express it."""
    flat = {key.replace("_", "-"): value for key, value in arguments_of(setup).items()}
    return {key: value for key, value in flat.items() if value is not None and value is not False}


def arguments_of(setup: OwnSetup) -> dict[str, Any]:
    """Return the arguments by argparse's names."""
    if setup.adapters is not None or setup.states == "bf16":
        raise ValueError("Megatron-LM's arguments have no adapters and keep states in fp32")
    if any(one not in ("optimizer",) for one in setup.offload):
        raise ValueError(f"Megatron-LM's arguments cannot offload {', '.join(setup.offload)}")
    zero: dict[str, Any] | None = {1: {"use_distributed_optimizer": True}, 0: {}}.get(setup.zero)
    if setup.engine == "fsdp2" and setup.zero in (2, 3):
        zero = {"use_torch_fsdp2": True, "torch_fsdp2_no_reshard_after_forward": setup.zero == 2}
    elif zero is None:
        strategy = "optim_grads" if setup.zero == 2 else "optim_grads_params"
        zero = {
            "use_megatron_fsdp": True,
            "use_distributed_optimizer": True,
            "data_parallel_sharding_strategy": strategy,
        }
    flat: dict[str, Any] = {
        **written_model(setup.model),
        "tensor_model_parallel_size": setup.tp,
        "pipeline_model_parallel_size": setup.pp,
        "context_parallel_size": setup.cp,
        "expert_model_parallel_size": setup.ep,
        "expert_tensor_parallel_size": setup.etp if setup.etp != setup.tp else None,
        "num_virtual_stages_per_pipeline_rank": setup.virtual_stages if setup.virtual_stages > 1 else None,
        "sequence_parallel": setup.sequence_parallel,
        "micro_batch_size": setup.micro_batch_size,
        "global_batch_size": _global_batch(setup),
        "seq_length": setup.seq_len,
        "recompute_granularity": None if setup.recompute == "none" else setup.recompute,
        "recompute_modules": list(setup.recompute_modules) if setup.recompute_modules else None,
        "moe_token_dispatcher_type": written_dispatcher(setup),
        "attention_backend": "unfused" if setup.attention == "explicit" else "flash",
        "optimizer": {"adamw": "adam", "sgd_momentum": "sgd"}.get(setup.optimizer, setup.optimizer),
        "optimizer_cpu_offload": "optimizer" in setup.offload,
        "num_distributed_optimizer_instances": setup.replicas if setup.replicas > 1 else None,
        **zero,
        **WRITTEN_PRECISION[setup.precision],
    }
    if setup.recompute == "full":
        flat |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    return flat


def written_dispatcher(setup: OwnSetup) -> str | None:
    """Return --moe-token-dispatcher-type, which is of experts alone."""
    named = any((setup.model or {}).get(name) for name in EXPERTS)
    has_experts = named or setup.ep > 1 or setup.dispatcher != "alltoall"
    return {"deepep": "flex"}.get(setup.dispatcher, setup.dispatcher) if has_experts else None


WRITTEN_PRECISION: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
    "fp8": {"bf16": True, "fp8_format": "hybrid"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}


def _global_batch(setup: OwnSetup) -> int | None:
    if setup.global_batch_size is not None or setup.gradient_accumulation_steps is None:
        return setup.global_batch_size
    try:
        return setup.micro_batch_size * setup.gradient_accumulation_steps * setup.dp_of()
    except ValueError as error:
        raise ValueError(
            f"Megatron-LM's global_batch_size follows from the data-parallel ranks: {error}"
        ) from error


def is_set(value: Any) -> bool:
    """Return whether an argument's value switches it on."""
    return value is not None and flag_of("argument", value)
