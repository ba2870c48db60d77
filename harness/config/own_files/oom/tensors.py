"""Tensors of a training step with their sizes, and which of them has the size that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.config.own_files.oom.sizes import StepSizes, tokens_of
from harness.config.own_files.setup import OwnSetup

TYPES = {4: "fp32", 2: "bf16"}


class StepTensor(NamedTuple):
    """One tensor that a step may ask for."""

    kind: str  # what it is of: logits, attention, activation, parameters, gradient, optimizer, collective
    name: str
    formula: str  # how its bytes come about
    size_B: int
    phases: tuple[str, ...]  # in which it is asked for


def step_tensors(setup: OwnSetup, sizes: StepSizes) -> Iterator[StepTensor]:
    """Yield the large tensors of one rank's step in fp32 and in 16 bits.

    Sources of what is allocated: torch's functional cross_entropy and its backward (log-softmax of the
    logits' size), torch/optim/adamw.py (`_multi_tensor_adamw` keeps a square root and a denominator per
    tensor), FSDP2's foreach_all_gather and foreach_reduce (one unit at a time), deepspeed's stage_1_and_2.py
    (flat groups), Megatron-Core's param_and_grad_buffer.py (one buffer of all gradients).
    """
    yield from _logits(setup, sizes)
    yield from _activations(setup, sizes)
    yield from _parameters(setup, sizes)


def _in_types(
    kind: str, name: str, formula: str, elements: float, phases: str, types: str = "42"
) -> Iterator[StepTensor]:
    for one in types:
        width = int(one)
        text = f"{width} B × {formula}"
        yield StepTensor(
            kind, f"{name} in {TYPES[width]}", text, round(width * elements), tuple(phases.split())
        )


def _logits(setup: OwnSetup, sizes: StepSizes) -> Iterator[StepTensor]:
    tokens, vocab = tokens_of(setup), sizes.vocab
    if not tokens:
        return
    words = f"{tokens:,} tokens × {vocab:,}"
    phases = "loss forward backward"
    yield from _in_types(
        "logits", "logits, their log-softmax or their gradient", words, tokens * vocab, phases
    )
    shifted = tokens - setup.micro_batch_size
    text = f"{shifted:,} tokens (shifted by one) × {vocab:,}"
    yield from _in_types("logits", "logits without each sequence's last token", text, shifted * vocab, phases)
    if setup.tp > 1:
        part = -(-vocab // setup.tp)
        text = f"{tokens:,} tokens × {vocab:,} / tp {setup.tp}"
        yield from _in_types("logits", "a rank's part of the logits", text, tokens * part, phases)


def _activations(setup: OwnSetup, sizes: StepSizes) -> Iterator[StepTensor]:
    tokens, tp = tokens_of(setup), setup.tp
    if not tokens:
        return
    phases = "forward backward"
    by = f" / tp {tp}" if tp > 1 else ""
    heads, seq = sizes.heads / tp, (setup.seq_len or 0) // setup.cp
    scores = setup.micro_batch_size * heads * seq * seq
    text = f"{setup.micro_batch_size} × {sizes.heads} heads{by} × {seq:,}²"
    yield from _in_types("attention", "attention scores", text, scores, phases)
    rows = f"{tokens:,} tokens × "
    yield from _in_types(
        "activation", "a layer's input or output", f"{rows}{sizes.hidden:,}", tokens * sizes.hidden, phases
    )
    if setup.sequence_parallel and tp > 1:
        text = f"{rows}{sizes.hidden:,}{by}"
        yield from _in_types(
            "activation", "a rank's part of a layer's input", text, tokens * sizes.hidden / tp, phases
        )
    queries = sizes.heads * sizes.head_dim
    together = queries + 2 * sizes.kv_heads * sizes.head_dim
    text = f"{rows}{together:,}{by}"
    yield from _in_types("activation", "queries, keys and values", text, tokens * together / tp, phases)
    text = f"{rows}{sizes.kv_heads * sizes.head_dim:,}{by}"
    yield from _in_types(
        "activation", "keys or values", text, tokens * sizes.kv_heads * sizes.head_dim / tp, phases
    )
    text = f"{rows}{sizes.width:,}{by}"
    yield from _in_types("activation", "the MLP's inner activation", text, tokens * sizes.width / tp, phases)
    if sizes.gated:
        text = f"{rows}2 × {sizes.width:,}{by}"
        yield from _in_types(
            "activation", "gate and up together", text, tokens * 2 * sizes.width / tp, phases
        )
    if sizes.experts:
        k = sizes.experts_per_token
        text = f"{rows}{k} experts × {sizes.hidden:,}"
        yield from _in_types(
            "activation", "tokens on their way to experts", text, tokens * k * sizes.hidden, phases
        )
        text = f"{rows}{k} experts × {sizes.expert_width:,}"
        yield from _in_types(
            "activation", "the experts' inner activation", text, tokens * k * sizes.expert_width, phases
        )


def _parameters(setup: OwnSetup, sizes: StepSizes) -> Iterator[StepTensor]:
    try:
        shards = setup.shard_ranks() if setup.zero else 1
    except ValueError:
        shards = 1
    model = setup.tp * setup.pp
    own = sizes.parameters / model
    by = f" / (tp {setup.tp} × pp {setup.pp})" if model > 1 else ""
    share = f" / {shards} ranks" if shards > 1 else ""
    units = {
        "a layer": (sizes.layer / setup.tp, f"{sizes.layer:,} parameters"),
        "the embedding or the output layer": (sizes.table / setup.tp, f"{sizes.vocab:,} × {sizes.hidden:,}"),
        "embedding and output layer together": (
            2 * sizes.table / setup.tp,
            f"2 × {sizes.vocab:,} × {sizes.hidden:,}",
        ),
        "one matrix of the MLP": (
            sizes.hidden * sizes.width / setup.tp,
            f"{sizes.hidden:,} × {sizes.width:,}",
        ),
        "all": (own, f"{sizes.parameters:,} parameters{by}"),
    }
    if sizes.experts:
        elements = sizes.experts / setup.ep * sizes.expert
        units["a layer's experts"] = (elements, f"{sizes.experts} experts / ep {setup.ep} × {sizes.expert:,}")
    for name, (elements, text) in units.items():
        yield from _in_types(
            "gather",
            f"parameters of {name}, gathered or copied",
            text,
            elements,
            "gather forward backward load",
        )
        yield from _in_types("gradient", f"gradients of {name}", text, elements, "backward reduce optimizer")
        if shards > 1:
            yield from _in_types(
                "gradient",
                f"a rank's gradients of {name}",
                text + share,
                elements / shards,
                "backward reduce",
            )
        yield from _in_types(
            "optimizer",
            f"Adam's moment or foreach temporary of {name}",
            text + share,
            elements / shards,
            "optimizer",
            "4" if setup.states == "fp32" else "24",
        )
    if setup.engine == "zero":
        bucket = 500_000_000
        text = "reduce_bucket_size 500,000,000 (deepspeed's default)"
        yield from _in_types("collective", "a bucket of gradients", text, bucket, "backward reduce")


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
