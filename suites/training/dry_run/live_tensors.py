"""What is alive at the peak of a dry run, in words: the largest tensors by the operation that made them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from harness.answer import SCORES
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline

MOST_LINES = 8
"""Groups of tensors that are named; the others of a subject are added up."""

SUBJECTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer state",
    "communication": "buffers of collectives",
    "activations": "activations kept for the backward pass",
    "temporaries": "temporaries",
}
"""What live bytes are of by their kind, unless their shape says more."""

LOGITS = "logits and their gradients"

WHOLE = ("parameters", "gradients", "optimizer_states")
"""Kinds that are not split by operation."""

OPERATIONS = {
    "_log_softmax": "log-softmax",
    "_log_softmax_backward_data": "backward of log-softmax",
    "_softmax_backward_data": "backward of softmax",
    "nll_loss_forward": "negative log-likelihood",
    "nll_loss_backward": "backward of negative log-likelihood",
    "mm": "matrix product",
    "addmm": "matrix product",
    "bmm": "batched matrix product",
    "_to_copy": "copy in another type",
    "clone": "copy",
    "cat": "concatenation",
    "embedding_dense_backward": "backward of embedding",
    "silu": "SiLU",
    "silu_backward": "backward of SiLU",
    "gelu": "GELU",
    "gelu_backward": "backward of GELU",
    "mul": "elementwise product",
    "add": "sum",
    "native_layer_norm": "layer norm",
    "native_layer_norm_backward": "backward of layer norm",
    "native_dropout": "dropout",
    "_scaled_dot_product_flash_attention": "flash attention",
    "_scaled_dot_product_flash_attention_backward": "backward of flash attention",
    "all_gather_into_tensor": "all-gather",
    "_allgather_base_": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "_reduce_scatter_base_": "reduce-scatter",
}
"""Operations of torch in words; others have their own name."""


class LiveGroup(NamedTuple):
    """Live tensors with one origin."""

    subject: str
    operation: str
    shape: tuple[int, ...]


def live_tensors(timeline: Timeline, vocab_size: int, seq_len: int) -> dict[str, int]:
    """Return the live bytes at the peak by "subject: what", largest first; they add up to the peak."""
    sizes_B, counts = Counter[LiveGroup](), Counter[LiveGroup]()
    for event, size_B in alive_at_peak(timeline):
        kind = timeline.kinds[event.storage]
        group = group_of(kind, event.place, vocab_size, seq_len)
        sizes_B[group] += size_B
        counts[group] += 1
    labels = Counter[str]()
    for line, (group, size_B) in enumerate(sizes_B.most_common()):
        labels[label_of(group, counts[group]) if line < MOST_LINES else f"{group.subject}: others"] += size_B
    return dict(labels.most_common())


def alive_at_peak(timeline: Timeline) -> list[tuple[MemoryEvent, int]]:
    """Return the allocations that are alive at the peak, each with its bytes as the allocator rounds them."""
    last = timeline.peak().event
    alive: dict[int, tuple[MemoryEvent, int]] = {}
    for event, size_B in zip(timeline.events[: last + 1], timeline.sizes_B(), strict=False):
        if event.delta_B > 0:
            alive[event.storage] = event, size_B
        else:
            del alive[event.storage]
    return list(alive.values())


def group_of(kind: str, place: OpSite, vocab_size: int, seq_len: int) -> LiveGroup:
    """Return what a live tensor is of, as its kind and its operation's shape have it."""
    if kind in WHOLE:
        return LiveGroup(SUBJECTS[kind], "", ())
    subject = SUBJECTS[kind]
    if kind in ("activations", "temporaries"):
        if len(place.shape) > 1 and place.shape[-1] == vocab_size:
            subject = LOGITS
        elif place.shape[-2:] == (seq_len, seq_len) and _is_of_heads(place):
            subject = SCORES
    return LiveGroup(subject, in_words(place.operation), place.shape)


def _is_of_heads(place: OpSite) -> bool:
    """Return whether a result has heads: its shape has four sizes, or a batched product joins the first two.

    A layer's activations have three, and the last two are equal where the hidden size is the sequence length.
    """
    return len(place.shape) == 4 or place.operation.split(".")[1:2] in (["bmm"], ["baddbmm"])


def label_of(group: LiveGroup, count: int) -> str:
    """Return "subject: several × operation, shape", which has no "/" as metrics' names do."""
    if not group.operation:
        return group.subject
    several = f"{count} × " if count > 1 else ""
    shape = " × ".join(f"{size:,}" for size in group.shape)
    return f"{group.subject}: {several}{group.operation}{', ' + shape if shape else ''}".replace("/", " ")


def in_words(operation: str) -> str:
    """Return an operation such as `aten._softmax.default` in words."""
    parts = operation.split(".")
    name = parts[1] if len(parts) > 1 else operation
    return OPERATIONS.get(name, name.strip("_").replace("_", " ")) or "before the step"
