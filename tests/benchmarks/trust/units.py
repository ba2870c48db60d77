"""Units of work of a known number: so a slowdown of 5 % is the same unit done 21 times instead of 20.

A piece of work is one unit, done `units` times, on tensors of its own or on those of its neighbours.
Between the machine and the experiments of this folder.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.benchmarks.trust.ops import Op

Unit = Callable[[], object]


def matmul(size: int) -> Unit:
    """Return the product of two square matrices, fp32."""
    left, right, out = (torch.randn(size, size) for _ in range(3))
    return lambda: torch.mm(left, right, out=out)


def exp(size: int) -> Unit:
    """Return the exponential of a vector."""
    x, out = torch.randn(size), torch.empty(size)
    return lambda: torch.exp(x, out=out)


def copy(size: int) -> Unit:
    """Return a copy of a vector: memory alone, once it exceeds the caches."""
    x, out = torch.randn(size), torch.empty(size)
    return lambda: out.copy_(x)


def softmax(size: int) -> Unit:
    """Return the softmax of rows of 256."""
    x, out = torch.randn(max(1, size // 256), 256), torch.empty(max(1, size // 256), 256)
    return lambda: torch.softmax(x, -1, out=out)


def cumsum(size: int) -> Unit:
    """Return the running sum of a vector: a chain of additions."""
    x, out = torch.randn(size), torch.empty(size)
    return lambda: torch.cumsum(x, 0, out=out)


KINDS = {one.__name__: one for one in (matmul, exp, copy, softmax, cumsum)}


def work(op: Op, units: int) -> Callable[[], None]:
    """Do the unit so many times, on tensors of its own; a call a unit."""
    return repeated(KINDS[op.kind](op.size), units)


def repeated(unit: Unit, units: int) -> Callable[[], None]:
    """Do `unit` so many times."""

    def run() -> None:
        for _ in range(units):
            unit()

    return run
