"""Units of work of a known number: so a slowdown of 5 % is the same unit done 21 times instead of 20.

Which kinds of work the experiments of this folder do, and at which sizes. A piece of work is one unit, done
`units` times, on tensors of its own or on those of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

Unit = Callable[[], object]


class Op(NamedTuple):
    """A kind of unit at a size: side of a matrix, or number of elements. One thread each."""

    kind: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.size}"


OPS = tuple(
    Op(kind, size)
    for kind, sizes in {
        "matmul": (24, 96, 208, 512),
        "exp": (2048, 32768, 300_000, 2_000_000),
        "copy": (16384, 200_000, 2_000_000, 6_000_000),
        "softmax": (2048, 40_960, 400_000, 4_000_000),
        "cumsum": (1536, 20_000, 250_000, 2_500_000),
    }.items()
    for size in sizes
)
"""Chosen so that 20 units of each kind take some 50 µs, 500 µs, 5 ms and 50 ms on a core of 2023."""


def matmul(size: int) -> Unit:
    left, right, out = (torch.randn(size, size) for _ in range(3))
    return lambda: torch.mm(left, right, out=out)


def exp(size: int) -> Unit:
    x, out = torch.randn(size), torch.empty(size)
    return lambda: torch.exp(x, out=out)


def copy(size: int) -> Unit:
    x, out = torch.randn(size), torch.empty(size)
    return lambda: out.copy_(x)


def softmax(size: int) -> Unit:
    x, out = torch.randn(max(1, size // 256), 256), torch.empty(max(1, size // 256), 256)
    return lambda: torch.softmax(x, -1, out=out)


def cumsum(size: int) -> Unit:
    x, out = torch.randn(size), torch.empty(size)
    return lambda: torch.cumsum(x, 0, out=out)


KINDS = {one.__name__: one for one in (matmul, exp, copy, softmax, cumsum)}


def work(op: Op, units: int) -> Callable[[], None]:
    """Do the unit so many times, on tensors of its own; a call a unit."""
    return repeated(KINDS[op.kind](op.size), units)


def repeated(unit: Unit, units: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(units):
            unit()

    return run
