"""LLM Foundry's YAML.

Sources: llm-foundry commit 8c8dd48 of July 2025 (llmfoundry/utils/config_utils.py,
models/mpt/configuration_mpt.py, scripts/train/yamls) and Composer's FSDPConfig
(composer/utils/parallelism.py) for the section's defaults.
"""

from __future__ import annotations

from typing import Any

from harness.frameworks.table import Fields, Flat, Parts, number_of
from harness.frameworks.words import adapters_of, filled, offload_of
from harness.question import Question

SIZES = {
    "d_model": "_hidden",
    "n_heads": "_heads",
    "n_layers": "_layers",
    "expansion_ratio": "_expansion",
    "vocab_size": "_vocab",
    "no_bias": "_no_bias",
    "tie_word_embeddings": "_tied",
}
"""Sizes of an MPT's config.json, which the file has below `model.`."""


def prepared(flat: Flat) -> Flat:
    """Return the values with OmegaConf's references filled in; train.py's `parameters.` is left out."""
    return filled({key.removeprefix("parameters."): value for key, value in flat.items()})


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    sharded = any(key.startswith("fsdp_config.") for key in parts.flat)
    fields: Fields = {"zero": parts["_strategy"] if sharded else 0}
    fields["sharing"] = "fsdp1" if fields["zero"] else "ddp"
    if parts.get("_replicas"):
        fields["replicas"] = parts["_replicas"]
    if parts["_shard"] > 0:
        fields["dp"] = parts["_shard"] * (parts.get("_replicas") or 1)
    fields["micro_batch_size"] = _micro_batch(parts)
    fields["offload"] = offload_of(parts)
    decoupled = "decoupled" in str(parts.flat.get("optimizer.name", "decoupled_adamw"))
    fields["optimizer_impl"] = "for_loop" if decoupled else "foreach"
    fields["attention"] = "flash" if parts["_attention"] in ("flash", "triton") else "explicit"
    if str(parts["_mixed"]).upper() == "FULL":
        fields["precision"] = "fp32"
    if parts.get("_rank"):
        fields["adapters"] = adapters_of(parts)
    return fields | {"config": _model(parts)}


def _micro_batch(parts: Parts) -> int:
    micro = parts["_micro"]
    if micro != "auto":
        return int(number_of("device_train_microbatch_size", micro, "count"))
    why = "the largest that fits is looked for; 1 is taken"
    parts.assume("micro_batch_size", f"device_train_microbatch_size is auto: {why}")
    parts.leave_out("device_train_microbatch_size", "auto", why, "raises", "either")
    return 1


def _model(parts: Parts) -> dict[str, Any] | None:
    """Return the config of an MPT by its sizes; None for a model of Hugging Face's."""
    if parts.get("_kind") != "mpt_causal_lm":
        return None
    if experts := next((key for key in parts.flat if key.startswith("model.ffn_config.moe_")), None):
        raise ValueError(f"{experts}: an MPT with experts has no model here")
    for name, part in SIZES.items():
        if part not in parts:
            raise ValueError(f"model.{name} is missing")
    config: dict[str, Any] = {"model_type": "mpt", **{name: parts[part] for name, part in SIZES.items()}}
    config["expansion_ratio"] = int(config["expansion_ratio"])
    if "seq_len" in parts:
        config["max_seq_len"] = parts["seq_len"]
    if "_groups" in parts:
        config["attn_config"] = {"kv_n_heads": parts["_groups"]}
    return config


def parts_of(question: Question) -> Fields:
    """Return LLM Foundry's parts of a question; raises ValueError where it cannot express it."""
    if question.global_batch_size is None:
        raise ValueError("LLM Foundry takes global_train_batch_size; global_batch_size is not given")
    config = question.config or {}
    mpt = config.get("model_type") == "mpt"
    parts: Fields = {
        "_kind": "mpt_causal_lm" if mpt else "hf_causal_lm",
        **({part: config.get(name) for name, part in SIZES.items()} if mpt else {}),
        "_attention": "torch" if question.attention == "explicit" else "flash",
    }
    if mpt:
        parts["model_name"] = None
    if question.sharing == "fsdp1":
        return parts | {
            "_strategy": question.zero,
            "_mixed": "PURE",
            "_shard": question.dp // question.replicas if question.dp else -1,
            "_replicas": question.replicas if question.replicas > 1 else None,
        }
    if question.recompute != "none" or question.offload:
        raise ValueError("LLM Foundry recomputes and offloads by fsdp_config alone; sharing is ddp")
    return parts | {"recompute": None, "_activations": None, "_offload": None}
