"""OLMo-core's training scripts, read as text; its overrides, and the config.json that it saves.

Sources: OLMo-core commit fa6c5014 of June 2026 (src/olmo_core/nn/transformer/config.py,
train/train_module/transformer/config.py, distributed/parallel/data_parallel.py, internal/experiment.py,
internal/cookbook.py, data/tokenizer.py).
"""

from __future__ import annotations

from typing import Any

from harness.frameworks.architectures import DecoderSizes, config_of, has_architecture, sizes_alone
from harness.frameworks.table import Fields, Flat, Parts, yaml_tree
from harness.frameworks.words import devices_of, steps_of
from harness.question import Question

TABLE = yaml_tree("olmo_core")

SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "hidden_size")


ROW_OF_EXPERTS = ("_d_model", "_n_layers", "_n_heads", "_num_experts", "_top_k", "_expert_width")
OF_EXPERTS = {*ROW_OF_EXPERTS}
"""Sizes that `llama_like_moe` takes."""


def prepared(flat: Flat) -> Flat:
    """Return the values by the names of overrides; other things that a script builds are left out."""
    scripts = "_imports" in flat
    values: dict[str, Any] = {}
    if any(key.startswith("cookbook.configure_train_module.") for key in flat):
        values |= TABLE["of_cookbook"]
    for name, value in flat.items():
        section = next((one for one in TABLE["sections"] if name.startswith(one)), "")
        key = TABLE["sections"][section] + name.removeprefix(section) if section else name.lstrip("-")
        if section == "TransformerConfig.":
            factory, _, key = name.removeprefix(section).partition(".")
            values["model.factory"], key = factory, f"model.{key}"
        elif scripts and not section:
            last = name.rpartition(".")[2]
            if last in TABLE["anywhere"] and isinstance(value, int):
                values.setdefault(TABLE["anywhere"][last], value)
            continue
        key = TABLE["cookbook"].get(key, key).replace("_CLASS_", "_class")
        key = key.replace("ac_config.0", "ac_config.mode")
        if key.endswith("._class") and isinstance(value, str) and value.startswith("olmo_core."):
            value = value.rpartition(".")[2]
        if value is not None and key != "model._class":
            values[key] = value
    tokenizer = values.pop("model.vocab_size._class", "")
    for one in [key for key in values if key.startswith(("model.vocab_size.", "model.block.name"))]:
        del values[one]
    if tokenizer:
        known = TABLE["vocabularies"]
        values["model.vocab_size"] = known.get(tokenizer.rpartition(".")[2], known["dolma2"])
    if any("ModelConfigurator" in key for key in flat):
        values["_ladder"] = True
    if "model.block_pattern" in values:  # no shape here: the model that is given replaces all of it
        kept = ("model.block_pattern", "model.lm_head.")
        values = {key: one for key, one in values.items() if key.startswith(kept) or key[:6] != "model."}
    if "launch.num_nodes" in values:
        values.setdefault("launch.num_gpus", 8)  # internal/common.py, build_launch_config
    if any(key.startswith("train_module.float8_config.") for key in values):
        values.setdefault("train_module.float8_config.enabled", True)  # Float8Config's default
    budget = values.get("train_module.ac_config.activation_memory_budget", 1.0)
    if budget != 1.0:
        values.setdefault("train_module.ac_config.mode", "budget")
    return values


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    several = parts.flat.get("model.block_pattern")
    model = _model(parts) if not several else {"model_name": "OLMo with layers of several kinds"}
    if not any(key.startswith("train_module.") for key in parts.flat):
        if parts.flat.get("_ladder"):
            raise ValueError(
                "a ladder of OLMo-core: --size (60M to 13B) chooses the model and its batch; ask one size by "
                "model=, devices=, seq_len= and tokens_per_batch= alone"
            )
        raise ValueError(
            "a script of OLMo-core whose train module is not in it (other files or the command line decide); "
            "give the config.json that the run saves"
        )
    length, sharded = parts.get("seq_len"), parts.get("_dp") in ("fsdp", "hsdp")
    replicated = parts.get("_dp") == "ddp" and parts["_dtype"] == "bf16"  # the model is cast (apply_ddp)
    float8 = str(parts.get("_float8")).lower() == "true"
    fields: Fields = {
        **model,
        "devices": devices_of(parts),
        "precision": "fp8" if float8 else parts.get("_autocast") or parts["_dtype"],
        "states": "bf16" if replicated else "fp32",
        "sharing": "fsdp2" if sharded else "ddp",
        "zero": (2 if parts["pp"] > 1 else 3) if sharded else 0,
        "sequence_parallel": parts["tp"] > 1,
        "recompute": parts.get("_recompute", "none"),
        "ep": _expert_ranks(parts),
        "schedule": parts["schedule"] if parts["pp"] > 1 else "1f1b",
        "virtual_stages": _stages(parts),
    }
    for part, field in (("_micro", "micro_batch_size"), ("_global", "global_batch_size")):
        if part in parts and length:
            fields[field] = max(1, parts[part] // length)
        elif part == "_micro":
            parts.assume(field, "train_module.rank_microbatch_size is known when the script runs; 1 is taken")
    if "shard_size" in parts:
        fields["shard_size"] = parts["shard_size"] * parts["cp"]
    of_node = parts.get("_dp") == "hsdp" and not parts.get("shard_size") and not parts.get("replicas")
    if of_node and parts.get(
        "_nodes"
    ):  # get_replicate_and_shard_degree, distributed/parallel/data_parallel.py
        fields["replicas"] = parts["_nodes"]
    elif of_node:
        why = "shards within a node, whose size the file does not give; all ranks are taken"
        parts.leave_out("train_module.dp_config.name", "hsdp", why, "raises", "either")
    return fields


def _stages(parts: Parts) -> int:
    """Return the stages of a pipeline rank (train_module/transformer/config.py, get_split_points)."""
    if isinstance(splits := parts.get("_splits"), list):
        return max(1, (len(splits) + 1) // int(parts["pp"]))
    return 1 if parts["pp"] == 1 or parts["schedule"] in ("1f1b", "gpipe") else 2


def _expert_ranks(parts: Parts) -> int:
    """Return the expert-parallel ranks; -1 is the shards of a copy under HSDP, else all ranks.

    (distributed/parallel/__init__.py, build_world_mesh and build_expert_parallel_mesh)
    """
    ranks, devices = parts["_experts"], devices_of(parts)
    if ranks >= 0:
        return max(1, int(ranks))
    alone = parts["tp"] * parts["pp"] * parts["cp"] == 1
    copies = parts.get("replicas", 1) if parts.get("_dp") == "hsdp" else 1
    known = parts.get("shard_size") or (devices // copies if devices and alone else 0)
    if known:
        return int(known)
    why = "experts are spread over all ranks, which devices decide; 1 is taken"
    parts.leave_out("train_module.ep_config.degree", -1, why)
    return 1


def _model(parts: Parts) -> Fields:
    """Return the config of a factory's or a saved file's sizes; else the factory as the model's name."""
    factory, known = parts.get("_factory", ""), TABLE["factories"]
    if factory == "small_hybrid_moe" or (factory == "llama_like_moe" and parts.flat.get("model.hybrid")):
        return {"model_name": "OLMo with a dense MLP next to the experts of each layer"}  # moe_hybrid_*
    shape = known.get(factory, known.get(factory.replace("olmo3_", "olmo2_"), ""))
    sizes: dict[str, int] = dict(zip(SIZES, map(int, shape.split()), strict=False))
    sizes |= {name: parts[f"_{name}"] for name in SIZES if f"_{name}" in parts}
    if factory == "llama_like" and "d_model" in sizes:
        width = int(parts.flat.get("model.hidden_size_multiplier", 1) * int(8 * sizes["d_model"] / 3))
        multiple = int(parts.flat.get("model.hidden_size_multiple_of", 256))
        sizes["hidden_size"] = -(-width // multiple) * multiple
    if row := TABLE["factories_of_experts"].get(factory):
        parts |= dict(zip(ROW_OF_EXPERTS, map(int, row.split()), strict=True)) | {"_qk_norm": True}
        return _with_experts(parts)
    if factory == "llama_like_moe" and parts.keys() >= OF_EXPERTS:
        return _with_experts(parts)
    if any(name not in sizes for name in SIZES if name != "n_kv_heads"):
        return {"model_name": factory.replace("_", "-")}
    kind = "llama" if factory.startswith("llama") else "olmo3" if factory.startswith("olmo3") else "olmo2"
    config = {
        "model_type": kind,
        "num_hidden_layers": sizes["n_layers"],
        "hidden_size": sizes["d_model"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes.get("n_kv_heads", sizes["n_heads"]),
        "intermediate_size": sizes["hidden_size"],
        "vocab_size": parts.get("_vocab_size", TABLE["vocabularies"]["dolma2"]),
        "max_position_embeddings": parts.get("seq_len") or 4096,
        "tie_word_embeddings": False,
    }
    window = {"sliding_window": 4096} if kind == "olmo3" else {}
    return {"config": config | window, **({"model_name": factory} if factory else {})}


def _with_experts(parts: Parts) -> Fields:
    """Return the config of `llama_like_moe`, whose sizes are all in the script; OLMoE's layers are such.

    (nn/transformer/config.py, llama_like_moe; the router has no bias and a shared expert no gate)
    """
    sizes = DecoderSizes(
        num_hidden_layers=parts["_n_layers"],
        hidden_size=parts["_d_model"],
        num_attention_heads=parts["_n_heads"],
        num_key_value_heads=parts.get("_n_kv_heads", parts["_n_heads"]),
        vocab_size=parts.get("_vocab_size", TABLE["vocabularies"]["dolma2"]),
        num_experts=parts["_num_experts"],
        experts_per_token=parts["_top_k"],
        moe_intermediate_size=parts["_expert_width"],
        shared_intermediate_size=parts.get("_shared_width") or 0,
        intermediate_size=parts["_expert_width"],
        rms_norm=True,
        gated=True,
        bias=False,
        qk_norm=bool(
            parts.get("_qk_norm") or parts.flat.get("model.qk_norm", parts.flat.get("model.reordered_norm"))
        ),
        positions=parts.get("seq_len") or 4096,
        tied=False,
        learned_positions=False,
    )
    return {"config": config_of(sizes) if has_architecture(sizes) else sizes_alone(sizes)}


def parts_of(question: Question) -> Fields:
    """Return OLMo-core's parts of a question; raises ValueError where it cannot express it."""
    config, length = question.config or {}, question.seq_len or 4096
    if question.config and config.get("model_type") not in ("olmo2", "olmo3"):
        raise ValueError(
            f"OLMo-core's file has the sizes of an OLMo; model_type is {config.get('model_type')}"
        )
    whole = question.global_batch_size
    if whole is None and question.dp is not None:
        whole = question.micro_batch_size * steps_of(question) * question.dp
    dtype = "bf16" if question.precision == "fp8" else question.precision
    return {
        "seq_len": length,
        "_micro": question.micro_batch_size * length,
        "_global": whole * length if whole else None,
        "_d_model": config.get("hidden_size"),
        "_n_layers": config.get("num_hidden_layers"),
        "_n_heads": config.get("num_attention_heads"),
        "_n_kv_heads": config.get("num_key_value_heads"),
        "_hidden_size": config.get("intermediate_size"),
        "_vocab_size": config.get("vocab_size"),
        "_dp": "fsdp" if question.zero else "ddp",
        "_dtype": dtype if question.zero else None,
        "_autocast": None if question.zero else dtype,
        "_float8": question.precision == "fp8",
        "_experts": question.ep,
        "_recompute": None if question.recompute == "none" else question.recompute,
    }
