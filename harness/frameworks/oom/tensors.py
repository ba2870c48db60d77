"""Tensors of a training step with their sizes, and which of them has the size that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.instruments.transformer.shape import TransformerShape
from harness.question import Question

TYPES = {4: "fp32", 2: "bf16"}


class StepTensor(NamedTuple):
    """One tensor that a step may ask for."""

    kind: str  # what it is of: logits, attention, activation, parameters, gradient, optimizer, collective
    name: str
    formula: str  # how its bytes come about
    size_B: int
    phases: tuple[str, ...]  # in which it is asked for


def step_tensors(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield the large tensors of one rank's step in fp32 and in 16 bits.

    Sources of what is allocated: torch's functional cross_entropy and its backward (log-softmax of the
    logits' size), torch/optim/adamw.py (`_multi_tensor_adamw` keeps a square root and a denominator per
    tensor), FSDP2's foreach_all_gather and foreach_reduce (one unit at a time), deepspeed's stage_1_and_2.py
    (flat groups), Megatron-Core's param_and_grad_buffer.py (one buffer of all gradients).
    """
    if tokens_of(question):
        yield from _logits(question, shape)
        yield from _scores(question, shape)
        yield from _activations(question, shape)
        yield from _routed(question, shape)
    yield from _parameters(question, shape)


def tokens_of(question: Question) -> int:
    """Return one rank's tokens of a micro-batch: micro-batch × sequence over context-parallel ranks."""
    return question.micro_batch_size * (question.seq_len or 0) // question.cp


def _in_types(
    kind: str, name: str, formula: str, elements: float, phases: str, types: str = "42"
) -> Iterator[StepTensor]:
    for one in types:
        width = int(one)
        text = f"{width} B × {formula}"
        yield StepTensor(
            kind, f"{name} in {TYPES[width]}", text, round(width * elements), tuple(phases.split())
        )


def _logits(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    tokens, vocab, phases = tokens_of(question), shape.vocab_size, "loss forward backward"
    rows = {
        "logits, their log-softmax or their gradient": tokens,
        "logits without each sequence's last token": tokens - question.micro_batch_size,
        "logits of one sequence": question.seq_len or 0,
    }
    for name, count in rows.items():
        yield from _in_types("logits", name, f"{count:,} tokens × {vocab:,}", count * vocab, phases)
    if question.tp > 1:
        part = -(-vocab // question.tp)
        text = f"{tokens:,} tokens × {vocab:,} / tp {question.tp}"
        yield from _in_types("logits", "a rank's part of the logits", text, tokens * part, phases)


def _scores(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    heads, seq = shape.num_attention_heads, (question.seq_len or 0) // question.cp
    by = f" / tp {question.tp}" if question.tp > 1 else ""
    text = f"{question.micro_batch_size} × {heads} heads{by} × {seq:,}²"
    elements = question.micro_batch_size * heads / question.tp * seq * seq
    yield from _in_types("attention", "attention scores", text, elements, "forward backward")
    text = f"{question.micro_batch_size} × {seq:,}²"
    mask = question.micro_batch_size * seq * seq
    yield from _in_types("attention", "the attention mask", text, mask, "forward backward")


def _activations(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield what a layer makes of all tokens; the widths of one's parts, by tensor-parallel ranks or not."""
    tp = question.tp
    queries, keys_values = shape.query_size, shape.key_value_size
    hidden, shared = shape.hidden_size, shape.shared_intermediate_size
    widths: list[tuple[str, float, int]] = [("a layer's input or output", hidden, 1)]
    if question.sequence_parallel and tp > 1:
        widths.append(("a rank's part of a layer's input", hidden, tp))
    widths += [
        ("queries, keys and values", queries + keys_values, tp),
        ("queries", queries, tp),
        ("attention's result", shape.attention_size, tp),
        ("keys and values", keys_values, tp),
        ("keys or values", shape.num_key_value_heads * shape.value_dim, tp),
    ]
    if shape.kv_lora_rank:
        widths.append(("latent keys and values", shape.kv_lora_rank + shape.qk_rope_head_dim, 1))
        widths.append(("latent queries", shape.q_lora_rank, 1))
    inner = [("the MLP's", shape.intermediate_size)] if not all(shape.layers_are_moe) else []
    inner += [("the shared experts'", shared)] if shared else []
    for whose, inner_width in inner:
        widths.append((f"{whose} inner activation", inner_width, tp))
        if shape.gated:
            widths.append((f"{whose} gate and up together", 2 * inner_width, tp))
    for name, width, ranks in widths:
        by = f" / tp {tp}" if ranks > 1 else ""
        text = f"{tokens_of(question):,} tokens × {width:,}{by}"
        if width:
            yield from _in_types(
                "activation", name, text, tokens_of(question) * width / ranks, "forward backward"
            )


def _routed(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield what a layer's experts make, if tokens are spread evenly over them."""
    if not shape.num_experts:
        return
    each, k = shape.moe_intermediate_size, shape.experts_per_token
    rows = f"{tokens_of(question):,} tokens × {k} experts"
    widths = [
        ("tokens on their way to experts", shape.hidden_size),
        ("the experts' inner activation", each),
        ("the experts' gate and up together", 2 * each),
    ]
    for name, width in widths if shape.gated else widths[:2]:
        text = f"{rows} × {width:,}"
        yield from _in_types("activation", name, text, tokens_of(question) * k * width, "forward backward")
    text = f"{tokens_of(question):,} tokens × {shape.num_experts} experts"
    elements = tokens_of(question) * shape.num_experts
    yield from _in_types("activation", "the router's scores", text, elements, "forward backward")


def _units(question: Question, shape: TransformerShape) -> dict[str, tuple[float, str]]:
    """Return parts of the model on one rank as their parameters and how these come about."""
    hidden, table, tp = shape.hidden_size, shape.embedding_parameters, question.tp
    model = tp * question.pp
    by = f" / (tp {tp} × pp {question.pp})" if model > 1 else ""
    kinds = set(shape.layers_are_moe)
    units: dict[str, tuple[float, str]] = {}
    for moe in sorted(kinds):
        size = shape.layer_parameters(moe)
        name = "a layer" if len(kinds) == 1 else "a layer with experts" if moe else "a dense layer"
        units[name] = (size / tp, f"{size:,} parameters")
    words = f"{shape.vocab_size:,} × {hidden:,}"
    units["the embedding or the output layer"] = (table / tp, words)
    units["embedding and output layer together"] = (2 * table / tp, f"2 × {words}")
    attention = {"queries": shape.query_size, "keys": shape.num_key_value_heads * shape.head_dim}
    attention["queries, keys and values"] = shape.query_size + shape.key_value_size
    for name, width in ({} if shape.kv_lora_rank else attention).items():
        units[f"the matrix of {name}"] = (hidden * width / tp, f"{hidden:,} × {width:,}")
    widths = {"the MLP": 0 if all(kinds) else shape.intermediate_size}
    widths["the shared experts"] = shape.shared_intermediate_size
    widths["an expert"] = shape.moe_intermediate_size
    for name, width in widths.items():
        if width:
            units[f"one matrix of {name}"] = (hidden * width / tp, f"{hidden:,} × {width:,}")
    if shape.num_experts:
        each, here = hidden * shape.moe_intermediate_size, shape.num_experts / question.ep
        text = f"{shape.num_experts} experts / ep {question.ep}"
        own = shape.expert_parameters
        units["a layer's experts"] = (here * own, f"{text} × {own:,}")
        units["one matrix of a layer's experts"] = (here * each, f"{text} × {hidden:,} × {each // hidden:,}")
        if shape.gated:
            both = f"{text} × 2 × {hidden:,} × {each // hidden:,}"
            units["gate and up of a layer's experts"] = (2 * here * each, both)
    units["all"] = (shape.parameters / model, f"{shape.parameters:,} parameters{by}")
    return units


def _parameters(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield parameters, gradients and the optimizer's states of the model's parts, and of a rank's share."""
    shards = _shards(question)
    share = f" / {shards} ranks" if shards > 1 else ""
    gathered = "gather forward backward load"
    types = "4" if question.states == "fp32" else "24"
    for name, (elements, text) in _units(question, shape).items():
        yield from _in_types("gather", f"parameters of {name}, gathered or copied", text, elements, gathered)
        yield from _in_types("gradient", f"gradients of {name}", text, elements, "backward reduce optimizer")
        own = elements / shards
        if shards > 1:
            yield from _in_types(
                "gradient", f"a rank's gradients of {name}", text + share, own, "backward reduce"
            )
        states = f"Adam's moment or foreach temporary of {name}"
        yield from _in_types("optimizer", states, text + share, own, "optimizer", types)
    if question.sharing == "zero":
        yield from _of_deepspeed(question, shape.parameters / question.tp / question.pp / shards)


def _of_deepspeed(question: Question, own: float) -> Iterator[StepTensor]:
    """Yield what deepspeed's defaults bound: buckets, and parts of the optimizer's step under ZeRO-3.

    deepspeed 0.19.8, runtime/zero/config.py: reduce_bucket_size, allgather_bucket_size, sub_group_size.
    `own`: the parameters whose states a rank has.
    """
    text = "reduce_bucket_size 500,000,000 (deepspeed's default)"
    yield from _in_types("collective", "a bucket of gradients", text, 500_000_000, "backward reduce")
    text = "allgather_bucket_size 500,000,000 (deepspeed's default)"
    yield from _in_types("collective", "a bucket of parameters", text, 500_000_000, "gather optimizer", "2")
    if question.zero == 3 and own > SUB_GROUP:
        name = "fp32 weights, a moment or a gradient of a sub-group"
        text = f"sub_group_size {SUB_GROUP:,} (deepspeed's default)"
        yield from _in_types("optimizer", name, text, SUB_GROUP, "optimizer load", "4")


SUB_GROUP = 1_000_000_000


def _shards(question: Question) -> int:
    """Return over how many ranks states are sharded; 1 where that is not known."""
    try:
        return question.shard_ranks() if question.zero else 1
    except ValueError:
        return 1


ORDER = ("logits", "attention", "optimizer", "gather", "gradient", "activation", "collective")


def matches(low_B: float, high_B: float, phase: str, tensors: Iterator[StepTensor]) -> list[StepTensor]:
    """Return the tensors between two sizes: those of the phase, or all where none is of it."""
    found: dict[str, StepTensor] = {}
    for one in tensors:
        if low_B <= one.size_B <= high_B:
            found.setdefault(one.name, one)

    def key(one: StepTensor) -> tuple[bool, bool, int]:
        special = phase == {"gather": "gather", "logits": "loss", "optimizer": "optimizer"}.get(one.kind)
        return (bool(phase) and phase not in one.phases, not special, ORDER.index(one.kind))

    of_phase = [one for one in found.values() if phase in one.phases]
    return sorted(of_phase or found.values(), key=key)
