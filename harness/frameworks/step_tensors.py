"""Tensors of a training step with their sizes, and which of them has the size that was asked for.

Sources of what is allocated: torch's functional cross_entropy and its backward (log-softmax of the logits'
size), torch/optim/adamw.py (`_multi_tensor_adamw` keeps a square root and a denominator per tensor), FSDP2's
foreach_all_gather and foreach_reduce (one unit at a time), deepspeed's stage_1_and_2.py (flat groups),
Megatron-Core's param_and_grad_buffer.py (one buffer of all gradients).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.instruments.transformer import TransformerShape
from harness.question import DEEPSPEED_BUCKET, Question

TYPES = {4: "fp32", 2: "bf16"}

PHASES = {
    "logits": "loss forward backward",
    "attention": "forward backward",
    "optimizer": "optimizer",
    "gather": "gather forward backward load",
    "gradient": "backward reduce optimizer",
    "activation": "forward backward",
    "collective": "backward reduce",
}
"""By kind of tensor, in which phases it is asked for; of several of one size, the first kind is likeliest."""

OWN_PHASE = {"gather": "gather", "logits": "loss", "optimizer": "optimizer"}
"""The phase in which a kind is likelier than the others."""

SUB_GROUP = 1_000_000_000
"""deepspeed's sub_group_size, in elements (0.19.8, runtime/zero/config.py)."""


class StepTensor(NamedTuple):
    """One tensor that a step may ask for."""

    kind: str  # what it is of, by `PHASES`
    name: str
    formula: str  # how its bytes come about
    size_B: int
    phases: tuple[str, ...]  # in which it is asked for


def step_tensors(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield the large tensors of one rank's step in fp32 and in 16 bits."""
    if question.seq_len:
        yield from _of_tokens(question, shape)
    yield from _of_parameters(question, shape)


def _in_types(
    kind: str, name: str, formula: str, elements: float, types: Sequence[int] = (4, 2), phases: str = ""
) -> Iterator[StepTensor]:
    """Yield a tensor of so many elements in each type; `phases`: where they are not those of its kind."""
    asked = tuple((phases or PHASES[kind]).split())
    for width in types:
        size_B = round(width * elements)
        yield StepTensor(kind, f"{name} in {TYPES[width]}", f"{width} B × {formula}", size_B, asked)


def _of_tokens(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield what one rank's tokens of a micro-batch are made of."""
    sequences, length, tp = question.micro_batch_size, question.seq_len or 0, question.tp
    vocab, tokens, part = shape.vocab_size, sequences * length // question.cp, f" / tp {tp}"
    for name, count in (
        ("logits, their log-softmax or their gradient", tokens),
        ("logits without each sequence's last token", tokens - sequences),
        ("logits of one sequence", length),
    ):
        yield from _in_types("logits", name, f"{count:,} tokens × {vocab:,}", count * vocab)
    if tp > 1:
        text = f"{tokens:,} tokens × {vocab:,}{part}"
        yield from _in_types("logits", "a rank's part of the logits", text, tokens * -(-vocab // tp))
    heads, seq = shape.num_attention_heads, length // question.cp
    text = f"{sequences} × {heads} heads{part if tp > 1 else ''} × {seq:,}²"
    yield from _in_types("attention", "attention scores", text, sequences * heads / tp * seq * seq)
    yield from _in_types("attention", "the attention mask", f"{sequences} × {seq:,}²", sequences * seq * seq)
    for name, width, ranks in _widths(question, shape):
        if width:
            text = f"{tokens:,} tokens × {width:,}{part if ranks > 1 else ''}"
            yield from _in_types("activation", name, text, tokens * width / ranks)
    if not shape.num_experts:
        return
    k, each = shape.experts_per_token, shape.moe_intermediate_size
    for name, width in (  # if tokens are spread evenly over the experts
        ("tokens on their way to experts", shape.hidden_size),
        ("the experts' inner activation", each),
        ("the experts' gate and up together", 2 * each * shape.gated),
    ):
        if width:
            text = f"{tokens:,} tokens × {k} experts × {width:,}"
            yield from _in_types("activation", name, text, tokens * k * width)
    text, count = f"{tokens:,} tokens × {shape.num_experts} experts", tokens * shape.num_experts
    yield from _in_types("activation", "the router's scores", text, count)


def _widths(question: Question, shape: TransformerShape) -> Iterator[tuple[str, int, int]]:
    """Yield what a layer makes of all tokens: its width, and over how many ranks that is spread."""
    tp, latent = question.tp, bool(shape.kv_lora_rank)
    yield "a layer's input or output", shape.hidden_size, 1
    if question.sequence_parallel and tp > 1:
        yield "a rank's part of a layer's input", shape.hidden_size, tp
    yield "queries, keys and values", shape.query_size + shape.key_value_size, tp
    yield "queries", shape.query_size, tp
    yield "attention's result", shape.attention_size, tp
    yield "keys and values", shape.key_value_size, tp
    yield "keys or values", shape.num_key_value_heads * shape.value_dim, tp
    yield "latent keys and values", latent * (shape.kv_lora_rank + shape.qk_rope_head_dim), 1
    yield "latent queries", latent * shape.q_lora_rank, 1
    dense = 0 if all(shape.layers_are_moe) else shape.intermediate_size
    for whose, inner in (("the MLP's", dense), ("the shared experts'", shape.shared_intermediate_size)):
        yield f"{whose} inner activation", inner, tp
        yield f"{whose} gate and up together", 2 * inner * shape.gated, tp


def _units(question: Question, shape: TransformerShape) -> Iterator[tuple[str, float, str]]:
    """Yield parts of the model on one rank, their parameters, and how these come about."""
    hidden, table, tp = shape.hidden_size, shape.embedding_parameters, question.tp
    kinds = set(shape.layers_are_moe)
    for moe in sorted(kinds):
        size = shape.layer_parameters(moe)
        name = "a layer" if len(kinds) == 1 else "a layer with experts" if moe else "a dense layer"
        yield name, size / tp, f"{size:,} parameters"
    words = f"{shape.vocab_size:,} × {hidden:,}"
    yield "the embedding or the output layer", table / tp, words
    yield "embedding and output layer together", 2 * table / tp, f"2 × {words}"
    plain, each = not shape.kv_lora_rank, shape.moe_intermediate_size
    for name, width in (
        ("the matrix of queries", plain * shape.query_size),
        ("the matrix of keys", plain * shape.num_key_value_heads * shape.head_dim),
        ("the matrix of queries, keys and values", plain * (shape.query_size + shape.key_value_size)),
        ("one matrix of the MLP", 0 if all(kinds) else shape.intermediate_size),
        ("one matrix of the shared experts", shape.shared_intermediate_size),
        ("one matrix of an expert", each),
    ):
        if width:
            yield name, hidden * width / tp, f"{hidden:,} × {width:,}"
    if shape.num_experts:
        here, text = shape.num_experts / question.ep, f"{shape.num_experts} experts / ep {question.ep} ×"
        own, matrix = shape.expert_parameters, f"{hidden:,} × {each:,}"
        yield "a layer's experts", here * own, f"{text} {own:,}"
        yield "one matrix of a layer's experts", here * hidden * each, f"{text} {matrix}"
        if shape.gated:
            yield "gate and up of a layer's experts", 2 * here * hidden * each, f"{text} 2 × {matrix}"
    model = tp * question.pp
    by = f" / (tp {tp} × pp {question.pp})" if model > 1 else ""
    yield "all", shape.parameters / model, f"{shape.parameters:,} parameters{by}"


def _of_parameters(question: Question, shape: TransformerShape) -> Iterator[StepTensor]:
    """Yield parameters, gradients and the optimizer's states of the model's parts, and of a rank's share."""
    shards = _shards(question)
    share = f" / {shards} ranks" if shards > 1 else ""
    types = (4,) if question.states == "fp32" else (2, 4)
    for name, count, text in _units(question, shape):
        own, own_text = count / shards, text + share
        yield from _in_types("gather", f"parameters of {name}, gathered or copied", text, count)
        yield from _in_types("gradient", f"gradients of {name}", text, count)
        if shards > 1:
            whose = f"a rank's gradients of {name}"
            yield from _in_types("gradient", whose, own_text, own, phases="backward reduce")
        states = f"Adam's moment or foreach temporary of {name}"
        yield from _in_types("optimizer", states, own_text, own, types)
    if question.sharing != "zero":
        return
    bucket, usual = question.bucket_elements() or DEEPSPEED_BUCKET, DEEPSPEED_BUCKET
    by_default = " (deepspeed's default)"
    text = f"reduce_bucket_size {bucket:,}{by_default if bucket == usual else ''}"
    yield from _in_types("collective", "a bucket of gradients", text, bucket)
    text = f"allgather_bucket_size {usual:,}{by_default}"
    yield from _in_types("collective", "a bucket of parameters", text, usual, (2,), "gather optimizer")
    if question.zero == 3 and shape.parameters / question.tp / question.pp / shards > SUB_GROUP:
        name = "fp32 weights, a moment or a gradient of a sub-group"
        text = f"sub_group_size {SUB_GROUP:,} (deepspeed's default)"
        yield from _in_types("optimizer", name, text, SUB_GROUP, (4,), "optimizer load")


def _shards(question: Question) -> int:
    """Return over how many ranks states are sharded; 1 where that is not known."""
    try:
        return question.shard_ranks() if question.zero else 1
    except ValueError:
        return 1


def of_size(low_B: float, high_B: float, phase: str, tensors: Iterator[StepTensor]) -> list[StepTensor]:
    """Return the tensors between two sizes: those of the phase, or all where none is of it."""
    found: dict[str, StepTensor] = {}
    for one in tensors:
        if low_B <= one.size_B <= high_B:
            found.setdefault(one.name, one)

    def key(one: StepTensor) -> tuple[bool, int]:
        return (phase != OWN_PHASE.get(one.kind), list(PHASES).index(one.kind))

    of_phase = [one for one in found.values() if phase in one.phases]
    return sorted(of_phase or found.values(), key=key)
