"""Which kinds of work the experiments of this folder do, and at which sizes."""

from __future__ import annotations

from typing import NamedTuple


class Op(NamedTuple):
    """A kind of unit at a size: side of a matrix, or number of elements. One thread each."""

    kind: str
    size: int

    @property
    def name(self) -> str:
        """Return the name, such as `exp_8192`."""
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
