"""litgpt's YAML: its finetune_lora, finetune_full and pretrain commands, recognised by their keys.

Sources: litgpt commit 26857050 of June 2026 (litgpt/finetune/lora.py and full.py, pretrain.py, args.py,
config.py, utils.py); Lightning 2.4.0 (fabric/plugins/precision: bitsandbytes.py of quantized weights, fsdp.py
of mixed precision). The output layer never is the embedding, unless `train.tie_embeddings` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.architectures import DecoderSizes, config_of
from harness.frameworks.models import published_model
from harness.frameworks.table import Fields, Flat, Parts, yaml_tree
from harness.frameworks.words import adapters_of, steps_of
from harness.question import Question, whole_size

LORA, PRETRAIN = "finetune_lora", "pretrain"

BATCHES = {LORA: (16, 1), "finetune_full": (16, 1), PRETRAIN: (512, 4)}
"""Sequences per step and per micro-batch that each command takes by default."""

PRECISIONS = {"bf16": "bf16", "16": "fp16", "32": "fp32"}

CHUNK = 128
"""Tokens of which finetune_lora computes the output layer and the loss at once."""

OTHERS = ("lora_query", "lora_key", "lora_value", "lora_projection", "lora_mlp")
"""Switches of adapters; conf/frameworks/litgpt.yaml has the layers of each."""


def prepared(flat: Flat) -> Flat:
    """Return the values without the dashes of a command line."""
    values = {key.lstrip("-"): value for key, value in flat.items()}
    if isinstance(values.get("optimizer"), str):
        values["optimizer.class_path"] = values.pop("optimizer")
    return values


def _command(parts: Parts) -> str:
    own = ("model_name", "model_config", "tokenizer_dir", "initial_checkpoint_dir")
    if any(key.partition(".")[0] in own for key in parts.flat):
        return PRETRAIN
    return (
        LORA if any(key.startswith("lora_") or key == "quantize" for key in parts.flat) else "finetune_full"
    )


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    command, quantized = _command(parts), parts.get("_quantize")
    kind, _, way = (parts.get("_precision") or "bf16-mixed").partition("-")
    if kind not in PRECISIONS:
        raise ValueError(f"precision is {parts['_precision']!r}; known: bf16-true, bf16-mixed, 32-true")
    per_node, nodes = _devices(parts, command), parts["_nodes"]
    several = (per_node or 2) * nodes > 1
    whole, micro = BATCHES[command]
    fields: Fields = {
        **_model(parts, command),
        "devices": per_node * nodes if per_node else None,
        "precision": PRECISIONS[kind],
        "states": "bf16" if (kind, way) == ("bf16", "true") else "fp32",
        "optimizer_impl": "fused" if command == PRETRAIN else "foreach",
        "compile": command == PRETRAIN,
        "recompute": "full" if several and command != PRETRAIN else "none",
        "sharing": "fsdp2" if command == LORA else "fsdp1",
        "zero": 3,
        "global_batch_size": parts.get("_global", whole),
        "micro_batch_size": parts.get("_micro", micro),
    }
    shape = _shape(fields)
    if parts.flat.get("model_config.attention_logit_softcapping") or shape.get("model_type") == "gemma2":
        fields["attention"] = "explicit"  # model.py: scores with a cap have no kernel; Gemma 2's have one
    if command == PRETRAIN and "seq_len" not in parts and "max_position_embeddings" in shape:
        fields["seq_len"] = shape["max_position_embeddings"]
        parts.assume("seq_len", "train.max_seq_length is not set, so it is the model's block_size")
    if several and way == "mixed":
        why = "FSDP gathers weights in fp32, and autocast keeps copies in bf16 of those that it uses"
        most = {"most_B": size} if (size := 4.0 * _most_parameters(shape)) else {}
        parts.leave_out(
            "precision", parts.get("_precision"), why, "raises", "raises", field="sharing", **most
        )
    if command == PRETRAIN and nodes > 1 and per_node:
        fields["replicas"] = nodes  # HYBRID_SHARD
    devices = fields["devices"]
    if devices:  # litgpt rounds down
        fields["gradient_accumulation_steps"] = max(
            1, fields["global_batch_size"] // devices // fields["micro_batch_size"]
        )
        fields["global_batch_size"] = None
    if command != PRETRAIN:  # padded to the longest of its micro-batch (data/base.py)
        fields["shorter"] = True
    if command == LORA:
        fields["loss_chunks"] = -(-parts.get("seq_len", 1) // CHUNK)
        fields["adapters"] = _adapters(parts, fields)
        if quantized:
            why = "fp32 states in unified memory, which move to the host where the device is full"
            parts.leave_out("optimizer.class_path", "PagedAdamW", why, "lowers", "raises")
    return fields


def _shape(fields: Fields) -> Mapping[str, Any]:
    """Return the model's sizes, none where they are not known."""
    shape = None if "config" in fields else published_model(fields["model_name"])
    return fields.get("config") or (shape.config if shape else {})


def _most_parameters(config: Mapping[str, Any]) -> int:
    """Return what a dense decoder has at most; 0 where its sizes are not known."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    layers, hidden, inner, words = (whole_size(config, name) or 0 for name in names)
    heads = (whole_size(config, "num_attention_heads") or 0) * (whole_size(config, "head_dim") or 0)
    return layers * hidden * (4 * max(hidden, heads) + 3 * inner) + 2 * words * hidden


def _devices(parts: Parts, command: str) -> int | None:
    given = parts.get("_devices", "auto" if command == PRETRAIN else 1)
    if str(given) in ("auto", "-1"):
        return None
    if not str(given).isdigit():
        raise ValueError(f"devices is {given!r}; it must be a whole number or auto")
    return int(given)


def _adapters(parts: Parts, fields: Fields) -> Any:
    default = (True, False, True, False, False)
    on = [parts.get(f"_{name}", usual) for name, usual in zip(OTHERS, default, strict=True)]
    kind = (fields.get("config") or {}).get("model_type", "")
    layers = yaml_tree("litgpt")["layers"]
    listed = layers.get(kind, layers["llama"])
    names = {name for switch, own in zip(on, listed, strict=True) if switch for name in own.split()}
    if not names:
        raise ValueError("every lora_ switch is off, so that no layer has adapters")
    quantized = str(parts.get("_quantize"))
    base = "nf4" if "4" in quantized else "int8" if "int8" in quantized else "bf16"
    targets = () if all(on) else tuple(sorted(names))
    return adapters_of(
        parts,
        rank=parts.get("_rank", 8),
        targets=targets,
        base=base,
        dtype="bf16" if fields["states"] == "bf16" else "fp32",
        double=base != "nf4" or quantized.endswith("-dq"),
        lightning=base != "bf16",  # Lightning's BitsandbytesPrecision, with no module ignored
    )


def _model(parts: Parts, command: str) -> Fields:
    """Return the model: the sizes of `model_config`, or a published shape with its output layer apart."""
    name = str(parts.get("_model_name") or parts.get("_checkpoint") or "").removeprefix("checkpoints/")
    tied = bool(parts.get("_tied")) and command == PRETRAIN
    if "_n_layer" in parts:
        return {"model_name": name, "config": _sizes(parts, tied)}
    shape = published_model(name)
    if shape is None:
        return {"model_name": name}
    own: dict[str, Any] = {"tie_word_embeddings": tied}
    if shape.config.get("tie_word_embeddings") is None:
        own.clear()
    if shape.config.get("model_type") == "phi":  # model.py: one kernel, where transformers has several
        own["hidden_act"] = "gelu_pytorch_tanh"
    if all(shape.config.get(key) == value for key, value in own.items()):
        return {"model_name": name}
    source = f"{shape.source}, with the output layer and the activation of litgpt's own code"
    return {"model_name": name, "config": {**shape.config, **own}, "model_source": source}


def _sizes(parts: Parts, tied: bool) -> dict[str, Any]:
    hidden, heads = parts.get("_n_embd", 4096), parts.get("_n_head", 32)
    multiple, size = parts.get("_padding", 512), parts.get("_vocab_size", 50254)
    gated = parts.get("_mlp", "GptNeoxMLP") != "GptNeoxMLP"
    sizes = DecoderSizes(
        num_hidden_layers=parts["_n_layer"],
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=parts.get("_padded") or -(-size // multiple) * multiple,
        num_key_value_heads=parts.get("_groups") or heads,
        head_dim=parts.get("_head_size"),
        intermediate_size=parts.get("_intermediate_size") or 4 * hidden,
        gated=gated,
        rms_norm=parts.get("_norm", "LayerNorm") == "RMSNorm",
        bias=parts.get("_bias", True),
        tied=tied,
        positions=parts.get("_block_size", 4096),
        learned_positions=False,
    )
    return config_of(sizes)


def parts_of(question: Question) -> Fields:
    """Return litgpt's parts of a question; raises ValueError where it cannot express it."""
    adapters, one = question.adapters, question.devices == 1
    if adapters is not None and adapters.base != "bf16" and not one:
        raise ValueError("litgpt quantizes on one device alone; devices is not 1")
    if adapters is not None and (adapters.targets or adapters.dora):
        raise ValueError(
            "litgpt's switches of adapters are written for every linear layer alone, without DoRA"
        )
    if adapters is None and question.recompute == ("full" if one else "none"):
        raise ValueError("litgpt's finetune_full recomputes on several devices alone")
    parts: Fields = {
        "_checkpoint": f"checkpoints/{question.model_name}",
        "_precision": "bf16-true" if question.states == "bf16" else f"{_kind(question)}",
        "_devices": question.devices or 1,
        "_global": question.global_batch_size
        or question.micro_batch_size * steps_of(question) * (question.devices or 1),
    }
    if adapters is None:
        return parts
    four = "bnb.nf4-dq" if adapters.double else "bnb.nf4"
    quantize = {"nf4": four, "int8": "bnb.int8-training"}.get(adapters.base)
    return parts | {
        "_rank": adapters.rank,
        "_quantize": quantize,
        **dict.fromkeys((f"_{n}" for n in OTHERS), True),
    }


def _kind(question: Question) -> str:
    return {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true"}[question.precision]
