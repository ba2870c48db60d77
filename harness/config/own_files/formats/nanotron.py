"""nanotron's YAML.

Sources: nanotron commit 2411b02 of April 2026 (config/config.py, config/parallelism_config.py,
config/models_config.py, parallel/context.py, helpers.py).
"""

from __future__ import annotations

from typing import Any

from harness.config.own_files.architectures import DecoderSizes, config_of
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "nanotron"
TITLE = "nanotron's YAML"
SOURCE = "nanotron 2411b02"


def recognised(flat: Flat) -> int:
    """Return how many keys only nanotron has."""
    own = {
        "parallelism.dp",
        "parallelism.tp",
        "parallelism.pp",
        "parallelism.pp_engine",
        "parallelism.tp_mode",
        "tokens.batch_accumulation_per_replica",
        "tokens.sequence_length",
        "optimizer.zero_stage",
        "model.model_config.num_hidden_layers",
    }
    return len(own & flat.keys())


def prepared(flat: Flat) -> Flat:
    """Return the values as they are."""
    return flat


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    for field, key in (("dp", "parallelism.dp"), ("seq_len", "tokens.sequence_length")):
        if field not in fields:
            raise ValueError(f"half a file of nanotron: {key} is missing, which has no default")
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    found["engine"] = "nanotron"
    found["precision"] = fields["_dtype"]
    found["recompute"] = "full" if fields["_recompute"] else "none"
    if not fields["_fp32_grads"]:
        why = "gradients and parameters without fp32 copies; everything in bf16 is taken"
        unclear.append(NotUnderstood("optimizer.accumulate_grad_in_fp32", False, why))
        found["states"] = "bf16"
    if str(fields.get("_attention")) in ("eager", "sdpa_math"):
        found["attention"] = "explicit"
    found["model"] = _model(fields)
    return {**found, "not_understood": unclear}


def _model(fields: Fields) -> dict[str, Any] | None:
    names = {
        "num_hidden_layers": "_layers",
        "hidden_size": "_hidden",
        "num_attention_heads": "_heads",
        "vocab_size": "_vocab",
    }
    missing = [key for key, field in names.items() if field not in fields]
    if missing:
        raise ValueError(
            f"model.model_config.{missing[0]} is missing; nanotron's default is one of its class"
        )
    multiple = fields["_divisible"] * fields["tp"]
    return config_of(
        DecoderSizes(
            num_hidden_layers=fields["_layers"],
            hidden_size=fields["_hidden"],
            num_attention_heads=fields["_heads"],
            vocab_size=-(-fields["_vocab"] // multiple) * multiple,
            num_key_value_heads=fields.get("_groups"),
            intermediate_size=fields.get("_ffn"),
            gated=True,
            rms_norm=True,
            bias=False,
            qkv_bias=bool(fields.get("_bias")),
            tied=fields["_tied"],
            positions=fields.get("_positions"),
            num_experts=fields.get("_experts") or 0,
            experts_per_token=fields.get("_top_k") or 2,
            moe_intermediate_size=fields["_moe_ffn"] if fields.get("_experts") else None,
        )
    )


def written(setup: OwnSetup) -> Flat:
    """Return nanotron's keys of a set-up; raises ValueError where it cannot express it."""
    if setup.zero > 1 or setup.engine not in ("nanotron", "megatron"):
        raise ValueError(f"nanotron has zero_stage 0 and 1; engine is {setup.engine}, zero {setup.zero}")
    if setup.virtual_stages > 1:
        raise ValueError(f"nanotron has no virtual stages; virtual_stages is {setup.virtual_stages}")
    if setup.recompute == "selective" or setup.offload or setup.adapters is not None:
        raise ValueError("nanotron has neither selective recomputation, nor offload, nor adapters")
    if setup.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"nanotron has no key for precision {setup.precision}")
    model = setup.model or {}
    sizes = (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
    )
    steps = setup.gradient_accumulation_steps or setup.micro_batches()
    return {
        "parallelism.dp": setup.dp_of(),
        "parallelism.tp": setup.tp,
        "parallelism.pp": setup.pp,
        "parallelism.context_parallel_size": setup.cp,
        "parallelism.expert_parallel_size": setup.ep,
        "parallelism.pp_engine": "afab" if setup.schedule == "gpipe" else "1f1b",
        "parallelism.tp_mode": "REDUCE_SCATTER" if setup.sequence_parallel else "ALL_REDUCE",
        "parallelism.recompute_layer": setup.recompute == "full",
        "tokens.micro_batch_size": setup.micro_batch_size,
        "tokens.batch_accumulation_per_replica": steps,
        "tokens.sequence_length": setup.seq_len or 2048,
        "optimizer.zero_stage": setup.zero,
        "optimizer.accumulate_grad_in_fp32": setup.states == "fp32",
        "optimizer.optimizer_factory.name": "sgd" if setup.optimizer == "sgd_momentum" else "adamW",
        "model.dtype": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[setup.precision],
        **{f"model.model_config.{name}": model[name] for name in sizes if name in model},
    }
