"""AllGather + GEMM: every rank multiplies all ranks' rows, beginning with its own, as the others arrive.

Per rank: x (M, K), w (K, N), y (RANKS * M, N) = all-gather(x) @ w. Copiers pull one peer's shard each into
`gathered` (RANKS, M, K) and signal its arrival. Signals, RANKS of each kind: `ready` of each owner's shard,
`arrived` of each shard here, and how often a shard was `taken`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.overlap.symmetric.heap import HEAP, ODD, SymmetricHeap
from suites.overlap.symmetric.primitives import copy, get, notify, wait

BLOCK = 1024  # elements that a copier moves at once


@triton.jit
def ag_gemm(
    x, w, y, shard, gathered, signals, heaps, faults, rank, epoch, M, K, N,
    RANKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BLOCK: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Program 0 publishes the own shard, 1 to RANKS - 1 pull the peers', the others multiply tiles."""
    ready, arrived, taken = 0, RANKS, 2 * RANKS
    program = tl.program_id(0)
    if program == 0:
        wait(signals, taken, (epoch - 1) * (RANKS - 1), faults, TIMEOUT_NS)
        copy(shard, x, M * K, BLOCK)
        for step in range(1, RANKS):
            notify(signals, ready + rank, epoch, heaps, rank, (rank + step) % RANKS)
        copy(gathered + tl.cast(rank, tl.int64) * M * K, x, M * K, BLOCK)
        notify(signals, arrived + rank, epoch, heaps, rank, rank)
    elif program < RANKS:
        source = (rank + program) % RANKS
        wait(signals, ready + source, epoch, faults, TIMEOUT_NS)
        get(gathered + tl.cast(source, tl.int64) * M * K, shard, M * K, heaps, rank, source, BLOCK)
        notify(signals, arrived + source, epoch, heaps, rank, rank)
        notify(signals, taken, 1, heaps, rank, source, "add")
    else:
        columns = tl.cdiv(N, BN)
        tiles = tl.cdiv(M, BM) * columns  # of one shard
        tile = program - RANKS
        source = (rank + tile // tiles) % RANKS
        wait(signals, arrived + source, epoch, faults, TIMEOUT_NS)
        row = tile % tiles // columns * BM + tl.arange(0, BM)[:, None]
        column = tile % columns * BN + tl.arange(0, BN)[None, :]
        rows = gathered + tl.cast(source, tl.int64) * M * K + row * K
        total = tl.zeros((BM, BN), tl.float32)
        for first in range(0, K, BK):
            along = first + tl.arange(0, BK)
            a = tl.load(rows + along[None, :], mask=(row < M) & (along[None, :] < K), other=0.0)
            b = tl.load(w + along[:, None] * N + column, mask=(along[:, None] < K) & (column < N), other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        out = y + (tl.cast(source, tl.int64) * M + row) * N + column
        tl.store(out, total.to(y.dtype.element_ty), mask=(row < M) & (column < N))


class AllGatherGemm:
    """The operation on one rank's heap, which it takes memory from; may be called again and again."""

    def __init__(self, heap: SymmetricHeap, m: int, k: int, dtype: torch.dtype) -> None:
        self._heap = heap
        self._shard = heap.tensor((m, k), dtype)
        self._gathered = heap.tensor((heap.ranks, m, k), dtype)
        self._signals = heap.signals(3 * heap.ranks)
        self._epoch = 0

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Return all-gather(x (M, K)) @ w (K, N), (RANKS * M, N); raises `SignalTimeout`."""
        heap, (m, k), n = self._heap, x.shape, w.shape[1]
        self._epoch += 1
        y = torch.empty(heap.ranks * m, n, dtype=x.dtype, device=x.device)
        bm, bn, bk = (64, 64, 32) if x.is_cuda else (32, 32, 32)
        tiles = heap.ranks * triton.cdiv(m, bm) * triton.cdiv(n, bn)
        heap.launch(
            ag_gemm, (heap.ranks + tiles,), x.contiguous(), w.contiguous(), y, self._shard, self._gathered,
            self._signals, epoch=self._epoch, M=m, K=k, N=n, BM=bm, BN=bn, BK=bk, BLOCK=BLOCK,
        )  # fmt: skip
        return y


def compilations(dtype: str = "bf16") -> Iterator[Compilation]:
    """Return the kernel as it is compiled for GPUs."""
    tensors = dict.fromkeys(("x", "w", "y", "shard", "gathered"), f"*{dtype}")
    sizes = dict.fromkeys(("M", "K", "N"), "i32")
    blocks = {"RANKS": 8, "BM": 64, "BN": 64, "BK": 32, "BLOCK": BLOCK, "TIMEOUT_NS": 1}
    yield Compilation("ag_gemm", ag_gemm, HEAP | tensors | sizes, blocks, odd=ODD)
