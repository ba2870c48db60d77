"""The output layer and the loss with their backward passes, from the last norm's result to its gradient.

Each function takes the tape when the norm's result of `result_B` bytes is there and leaves its gradient in
its place. `turn` is called between the forward and the backward pass. See the technique `loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from suites.training.layouts.transformers_code.layer import LayerCode
from suites.training.layouts.transformers_code.tape import Tape

LossName = Literal["whole", "recomputed in chunks", "fused"]


def whole(tape: Tape, layer: LayerCode, result_B: float, turn: Callable[[], None], chunks: int) -> None:
    """Make all logits at once, and their fp32 copy."""
    width, vocabulary = layer.shape.hidden_size, layer.shape.vocab_size
    layer.linear(tape, width, vocabulary)
    if layer.precision.autocast:
        tape.add(-result_B)
    logits_B, wide_B = layer.size_B(vocabulary, layer.precision.product_B), layer.size_B(vocabulary, 4)
    narrow = layer.precision.product_B == 2
    tape.add(wide_B if narrow else 0.0, wide_B, -logits_B if narrow else 0.0, -wide_B)
    turn()
    tape.add(wide_B, wide_B, -wide_B, -wide_B)
    tape.add(logits_B if narrow else 0.0, -wide_B if narrow else 0.0)
    layer.linear_backward(tape, width, vocabulary, frees_input=True)


def in_chunks(tape: Tape, layer: LayerCode, result_B: float, turn: Callable[[], None], chunks: int) -> None:
    """Make the logits of one chunk at a time, in the backward pass again."""
    shape, autocast = layer.shape, layer.precision.autocast
    narrow = layer.precision.product_B == 2
    weight_B = layer.weight_B(shape.hidden_size, shape.vocab_size)
    product_B = layer.precision.product_B
    logits_B = layer.size_B(shape.vocab_size, product_B) / chunks
    wide_B = layer.size_B(shape.vocab_size, 4) / chunks
    input_B = layer.size_B(shape.hidden_size, product_B) / chunks
    gradient_B = result_B / chunks
    copy_B = weight_B if autocast else 0.0

    def logits() -> None:
        tape.add(logits_B, wide_B if narrow else 0.0, wide_B)
        tape.add(-logits_B if narrow else 0.0, -wide_B)

    tape.add(copy_B)
    logits()
    tape.add(-wide_B, -copy_B)
    turn()
    for chunk in range(chunks):
        tape.add(copy_B, input_B if autocast else 0.0)
        logits()
        tape.add(wide_B, wide_B, -wide_B, -wide_B)
        tape.add(logits_B if narrow else 0.0, -wide_B if narrow else 0.0)
        tape.add(weight_B, input_B, -copy_B, -input_B if autocast else 0.0, -logits_B)
        if chunk == 1:
            tape.add(weight_B, -weight_B)
        if chunk > 0:
            tape.add(-weight_B)
        if autocast:
            tape.add(gradient_B, -input_B)
    if autocast:
        tape.add(2 * weight_B, -weight_B)
    tape.add(-layer.added_B(weight_B))
    tape.add(-result_B, result_B, -chunks * gradient_B)


def fused(tape: Tape, layer: LayerCode, result_B: float, turn: Callable[[], None], chunks: int) -> None:
    """Make the gradients in the forward pass, some rows of logits at a time, as Liger does.

    Rows: liger_kernel/ops/fused_linear_cross_entropy.py.
    """
    shape, autocast = layer.shape, layer.precision.autocast
    tokens, product_B = layer.tokens, layer.precision.product_B
    rows = -(-tokens // -(-shape.vocab_size // shape.hidden_size))
    rows = min(tokens, 1 << (rows - 1).bit_length())
    weight_B = layer.weight_B(shape.hidden_size, shape.vocab_size)
    logits_B, rows_B = float(product_B * rows * shape.vocab_size), float(product_B * rows * shape.hidden_size)
    tape.add(result_B, 2 * weight_B if autocast else weight_B)
    tape.add(weight_B if autocast else 0.0)  # autocast's copy
    tape.add(rows_B if autocast else 0.0, logits_B, -rows_B if autocast else 0.0)
    tape.inside(rows_B)
    if autocast:
        tape.inside(rows_B, weight_B)
    tape.add(-logits_B, -weight_B if autocast else 0.0, -result_B)
    turn()
    tape.add(-layer.added_B(weight_B))


LOSSES: Mapping[LossName, Callable[[Tape, LayerCode, float, Callable[[], None], int], None]] = {
    "whole": whole,
    "recomputed in chunks": in_chunks,
    "fused": fused,
}
