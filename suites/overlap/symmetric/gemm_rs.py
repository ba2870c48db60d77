"""GEMM + ReduceScatter: every rank multiplies the peers' rows first, and sums its own as the others' arrive.

Per rank: x (RANKS * M, K), w (K, N), y (M, N) = this rank's rows of the sum of all ranks' x @ w. A tile of
the product goes straight into `parts` (RANKS, M, N) of the rank that owns its rows: [source rank, row,
column]. Own tiles are last and add the others in the order of ranks, in fp32, so that the result does not
depend on timing.

Signals, one per rank and tile of each kind, set to the epoch: `arrived` (source, tile) at the owner, and
`taken` (owner, tile) at the source, whose part may be overwritten from then on.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.overlap.symmetric.heap import HEAP, ODD, SymmetricHeap
from suites.overlap.symmetric.primitives import notify, symm_at, wait

BM, BN, BK = 64, 64, 32


@triton.jit
def gemm_rs(
    x, w, y, parts, signals, heaps, faults, rank, epoch, M, K, N,
    RANKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Multiply a tile, then send it to its owner, or add the other ranks' parts to it."""
    columns = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * columns  # of one shard
    arrived, taken = 0, RANKS * tiles
    program = tl.program_id(0)
    tile = program % tiles
    owner = (rank + 1 + program // tiles) % RANKS
    row = tile // columns * BM + tl.arange(0, BM)[:, None]
    column = tile % columns * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    rows = x + (tl.cast(owner, tl.int64) * M + row) * K
    product = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        along = first + tl.arange(0, BK)
        a = tl.load(rows + along[None, :], mask=(row < M) & (along[None, :] < K), other=0.0)
        b = tl.load(w + along[:, None] * N + column, mask=(along[:, None] < K) & (column < N), other=0.0)
        product = tl.dot(a, b, product, input_precision="ieee")
    if owner != rank:
        part = symm_at(parts, heaps, rank, owner) + (tl.cast(rank, tl.int64) * M + row) * N + column
        wait(signals, taken + owner * tiles + tile, epoch - 1, faults, TIMEOUT_NS)
        tl.store(part, product.to(y.dtype.element_ty), mask=inside)
        notify(signals, arrived + rank * tiles + tile, epoch, heaps, rank, owner)
    else:
        total = tl.zeros((BM, BN), tl.float32)
        for source in range(RANKS):
            if source == rank:
                total += product
            else:
                wait(signals, arrived + source * tiles + tile, epoch, faults, TIMEOUT_NS)
                part = parts + (tl.cast(source, tl.int64) * M + row) * N + column
                total += tl.load(part, mask=inside).to(tl.float32)
                notify(signals, taken + rank * tiles + tile, epoch, heaps, rank, source)
        tl.store(y + tl.cast(row, tl.int64) * N + column, total.to(y.dtype.element_ty), mask=inside)


class GemmReduceScatter:
    """The operation on one rank's heap, which it takes memory from; may be called again and again."""

    def __init__(self, heap: SymmetricHeap, m: int, n: int, dtype: torch.dtype) -> None:
        self._heap = heap
        self._parts = heap.tensor((heap.ranks, m, n), dtype)
        self._tiles = triton.cdiv(m, BM) * triton.cdiv(n, BN)
        self._signals = heap.signals(2 * heap.ranks * self._tiles)
        self._epoch = 0

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Return this rank's rows (M, N) of the sum over ranks of x (RANKS * M, K) @ w (K, N).

        Raises `SignalTimeout`.
        """
        heap, (_, m, n), k = self._heap, self._parts.shape, w.shape[0]
        if (*x.shape, *w.shape) != (heap.ranks * m, k, k, n):
            raise ValueError(
                f"x {tuple(x.shape)} @ w {tuple(w.shape)} is not {heap.ranks} ranks' shards of {m} x {n}"
            )
        self._epoch += 1
        y = torch.empty(m, n, dtype=x.dtype, device=x.device)
        heap.launch(
            gemm_rs, (heap.ranks * self._tiles,), x.contiguous(), w.contiguous(), y, self._parts,
            self._signals, epoch=self._epoch, M=m, K=k, N=n, BM=BM, BN=BN, BK=BK,
        )  # fmt: skip
        return y


def compilations(dtype: str = "bf16") -> Iterator[Compilation]:
    """Return the kernel as it is compiled for GPUs."""
    tensors = dict.fromkeys(("x", "w", "y", "parts"), f"*{dtype}")
    sizes = dict.fromkeys(("M", "K", "N"), "i32")
    blocks = {"RANKS": 8, "BM": BM, "BN": BN, "BK": BK, "TIMEOUT_NS": 1}
    yield Compilation("gemm_rs", gemm_rs, HEAP | tensors | sizes, blocks, odd=ODD)
