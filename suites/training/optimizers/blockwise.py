"""Block-wise quantization (arXiv 2110.02861, 2305.14314): indices into a table, and one maximum per block.

Shapes: E elements of a flat tensor, C values of a table, in increasing order.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from harness.instruments import torch_internals

DECADES = 7
"""Powers of ten that the table of dynamic quantization spans."""

SLICE = 1 << 20
"""Elements that are widened at once, a multiple of every block."""


def slices(flat_E: Tensor, at_once: int = SLICE) -> list[slice]:
    """Return the slices of a flat tensor, one after the other; of a fake one those of each size.

    A slice's temporaries are freed with it, and fake tensors have no values: the first stands for all but a
    shorter last one.
    """
    count = flat_E.numel()
    starts = list(range(0, count, at_once))
    if torch_internals.is_fake(flat_E):
        starts = [*starts[:1], *starts[1:][-1:]] if count % at_once else starts[:1]
    return [slice(start, min(start + at_once, count)) for start in starts]


@cache
def dynamic_codes(signed: bool) -> tuple[float, ...]:
    """Return the 256 values of dynamic quantization, in increasing order, from -1 or 0 to 1.

    arXiv 2110.02861, section 1.3: each power of ten has twice as many equal steps between 0.1 and 1 as the
    one below; a value is the middle of a step. Besides there are 0 and 1.
    """
    values = [0.0, 1.0]
    for decade in range(DECADES):
        steps = 2**decade if signed else 2 ** (decade + 1)
        scale = 10.0 ** (decade - DECADES + 1)
        middles = [scale * (0.1 + 0.9 * (index + 0.5) / steps) for index in range(steps)]
        values += [*middles, *(-one for one in middles)] if signed else middles
    return tuple(sorted(values))


def quantize(values_E: Tensor, table_C: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the index (uint8) of each value's nearest code, and each block's maximum (fp32)."""
    padded = nn.functional.pad(values_E.abs(), (0, -len(values_E) % block))
    maxima = padded.view(-1, block).amax(1).float()
    del padded
    scaled_E = values_E / spread(maxima, block, len(values_E)).clamp_(min=torch.finfo(torch.float32).tiny)
    middles = (table_C[:-1] + table_C[1:]) / 2
    return torch.bucketize(scaled_E, middles, out_int32=True).to(torch.uint8), maxima


def widen(indices_E: Tensor, maxima: Tensor, table_C: Tensor, block: int) -> Tensor:
    """Return the values that indices and maxima represent, fp32."""
    return table_C.index_select(0, indices_E.int()).mul_(spread(maxima, block, len(indices_E)))


def spread(maxima: Tensor, block: int, count: int) -> Tensor:
    """Return each of `count` elements' maximum."""
    return maxima.repeat_interleave(block)[:count]
