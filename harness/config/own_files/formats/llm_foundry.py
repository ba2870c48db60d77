"""LLM Foundry's YAML.

Sources: llm-foundry commit 8c8dd48 of July 2025 (llmfoundry/utils/config_utils.py,
models/mpt/configuration_mpt.py, scripts/train/yamls) and Composer's FSDPConfig
(composer/utils/parallelism.py) for the section's defaults.
"""

from __future__ import annotations

import re
from typing import Any

from harness.config.own_files.formats.words import optimizer_of, targets_of
from harness.config.own_files.models import hub_name
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "llm_foundry"
TITLE = "LLM Foundry's YAML"
SOURCE = "llm-foundry 8c8dd48"


REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def recognised(flat: Flat) -> int:
    """Return how many keys only LLM Foundry has."""
    own = {
        "global_train_batch_size",
        "device_train_microbatch_size",
        "max_duration",
        "device_eval_batch_size",
        "train_loader.name",
        "max_seq_len",
        "device_train_grad_accum",
        "model.init_device",
    }
    return (
        2 * len(own & flat.keys())
        if {"global_train_batch_size", "device_train_batch_size", "max_duration"} & flat.keys()
        else 0
    )


def prepared(flat: Flat) -> Flat:
    """Return the values with OmegaConf's references filled in; train.py's `parameters.` is left out."""
    values = {key.removeprefix("parameters."): value for key, value in flat.items()}

    def filled(value: Any) -> Any:
        found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return value
        return filled(values.get(found.group(1), values.get(f"variables.{found.group(1)}")))

    return {key: filled(value) for key, value in values.items()}


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    sharded = any(key.startswith("fsdp_config.") for key in flat)
    found["zero"] = fields["_strategy"] if sharded else 0
    found["engine"] = "fsdp1" if found["zero"] else "ddp"
    if "HYBRID" in str(flat.get("fsdp_config.sharding_strategy", "")):
        why = "shards within a node, whose size the file does not give"
        unclear.append(
            NotUnderstood("fsdp_config.sharding_strategy", flat["fsdp_config.sharding_strategy"], why)
        )
    if fields.get("_replicas"):
        found["replicas"] = fields["_replicas"]
    if fields["_shard"] > 0:
        found["dp"] = fields["_shard"] * (fields.get("_replicas") or 1)
    found |= _batches(fields, unclear)
    found["recompute"] = "full" if fields["_recompute"] else "none"
    offload = (("activations",) if fields["_activations"] else ()) + (
        ("optimizer", "parameters") if fields["_offload"] else ()
    )
    found["offload"] = offload
    found["optimizer"] = optimizer_of("optimizer.name", fields["_optimizer"], unclear)
    found["optimizer_impl"] = "for_loop" if "decoupled" in fields["_optimizer"] else "foreach"
    found["attention"] = "flash" if fields["_attention"] in ("flash", "triton") else "explicit"
    if str(fields["_mixed"]).upper() == "FULL":
        found["precision"] = "fp32"
    if fields.get("_rank"):
        found["adapters"] = Adapters(rank=fields["_rank"], targets=targets_of(fields.get("_modules")))
    found["model"] = _model(fields)
    return {**found, "not_understood": unclear}


def _batches(fields: Fields, unclear: list[NotUnderstood]) -> Fields:
    micro = fields["_micro"]
    if fields.get("_accum") is not None:
        unclear.append(
            NotUnderstood("device_train_grad_accum", fields["_accum"], "became device_train_microbatch_size")
        )
    if isinstance(micro, str) and micro.isdigit():
        micro = int(micro)
    if isinstance(micro, float) and micro.is_integer():
        micro = int(micro)
    if isinstance(micro, int) and micro > 0:
        return {"micro_batch_size": micro}
    if micro != "auto":
        raise ValueError(
            f"device_train_microbatch_size is {micro!r}; it must be auto or a whole number of at least 1"
        )
    unclear.append(
        NotUnderstood(
            "device_train_microbatch_size", "auto", "the largest that fits is looked for; 1 is taken"
        )
    )
    return {"micro_batch_size": 1}


def _model(fields: Fields) -> dict[str, Any] | None:
    """Return the config of an MPT by its sizes; None for a model of Hugging Face's."""
    if fields.get("_kind") != "mpt_causal_lm":
        return None
    for key, field in (("d_model", "_hidden"), ("n_heads", "_heads"), ("n_layers", "_layers")):
        if field not in fields:
            raise ValueError(f"model.{key} is missing")
    config: dict[str, Any] = {
        "model_type": "mpt",
        "d_model": fields["_hidden"],
        "n_heads": fields["_heads"],
        "n_layers": fields["_layers"],
        "expansion_ratio": int(fields["_expansion"]),
        "vocab_size": fields["_vocab"],
        "no_bias": fields["_no_bias"],
        "tie_word_embeddings": fields["_tied"],
    }
    if "seq_len" in fields:
        config["max_seq_len"] = fields["seq_len"]
    if "_groups" in fields:
        config["attn_config"] = {"kv_n_heads": fields["_groups"]}
    return config


def written(setup: OwnSetup) -> Flat:
    """Return LLM Foundry's keys of a set-up; raises ValueError where it cannot express it."""
    for name, value in (("pp", setup.pp), ("cp", setup.cp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"LLM Foundry has no key for {name} {value}")
    if setup.engine not in ("fsdp1", "ddp") or setup.zero == 1:
        raise ValueError(f"LLM Foundry shards by FSDP; engine is {setup.engine}, zero {setup.zero}")
    if setup.recompute == "selective" or setup.states == "bf16" or setup.compile:
        raise ValueError(
            "LLM Foundry's YAML has no key for selective recomputation, states in bf16 or compile"
        )
    if setup.global_batch_size is None:
        raise ValueError("LLM Foundry takes global_train_batch_size; global_batch_size is not given")
    precision = {"bf16": "amp_bf16", "fp16": "amp_fp16", "fp32": "fp32", "fp8": "amp_fp8"}.get(
        setup.precision
    )
    if precision is None:
        raise ValueError(f"LLM Foundry has no key for precision {setup.precision}")
    flat: dict[str, object] = {
        **_written_model(setup),
        "max_seq_len": setup.seq_len,
        "global_train_batch_size": setup.global_batch_size,
        "device_train_microbatch_size": setup.micro_batch_size,
        "max_duration": "1ep",
        "precision": precision,
        "optimizer.name": {"adamw": "decoupled_adamw"}.get(setup.optimizer, setup.optimizer),
        "tp_config.tensor_parallel_degree": setup.tp,
        "n_gpus": setup.devices,
    }
    if setup.engine == "fsdp1":
        flat |= {
            "fsdp_config.sharding_strategy": "FULL_SHARD" if setup.zero == 3 else "SHARD_GRAD_OP",
            "fsdp_config.mixed_precision": "PURE",
            "fsdp_config.activation_checkpointing": setup.recompute == "full",
            "fsdp_config.activation_cpu_offload": "activations" in setup.offload,
            "fsdp_config.cpu_offload": "parameters" in setup.offload,
            "fsdp_config.data_parallel_shard_degree": setup.dp // setup.replicas if setup.dp else -1,
            "fsdp_config.data_parallel_replicate_degree": setup.replicas if setup.replicas > 1 else None,
        }
    elif setup.recompute == "full" or setup.offload:
        raise ValueError("LLM Foundry recomputes and offloads by fsdp_config alone; engine is ddp")
    return flat


def _written_model(setup: OwnSetup) -> dict[str, object]:
    model = setup.model or {}
    impl = "flash" if setup.attention == "flash" else "torch"
    if model.get("model_type") != "mpt":
        return {
            "model.name": "hf_causal_lm",
            "model.pretrained_model_name_or_path": hub_name(setup.model_name, setup.format),
            "model.attn_config.attn_impl": impl,
        }
    names = (
        "d_model",
        "n_heads",
        "n_layers",
        "expansion_ratio",
        "vocab_size",
        "no_bias",
        "tie_word_embeddings",
    )
    flat: dict[str, object] = {f"model.{name}": model[name] for name in names if name in model}
    return {"model.name": "mpt_causal_lm", **flat, "model.attn_config.attn_impl": impl}
