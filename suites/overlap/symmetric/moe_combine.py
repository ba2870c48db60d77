"""MoE combine: the experts' outputs return to the ranks of their tokens, which sum them with their weights.

Per rank: y (rows, H), the outputs in the order in which dispatch left the rows, (expert, source rank, token);
out (T, H) = for each token the sum over its choices of weight * output, in the order of choices, in fp32. The
rows of one expert and source are contiguous in y and in `returned` (T * CHOICES, H) of the source, which is
in the order of experts. They begin at `here` (LOCAL, RANKS) and `there` (RANKS, E), with LOCAL experts per
rank.

Signals, RANKS of each kind: `ready` [source], set to the epoch when a rank enters the launch, having read
what it received before; and `arrived` [owner of the experts], to which each sending program adds 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.overlap.symmetric.heap import HEAP, ODD, SymmetricHeap
from suites.overlap.symmetric.moe_dispatch import BLOCK, SENDERS, Routes
from suites.overlap.symmetric.primitives import notify, put, wait


@triton.jit
def moe_combine(
    y, here, there, counts, places, weights, out, returned, signals, heaps, faults, rank, epoch,
    T, H, CHOICES, RANKS: tl.constexpr, LOCAL: tl.constexpr,
    SENDERS: tl.constexpr, BLOCK: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Program 0 reports that it is ready, the next return one expert's rows to one rank, the others sum."""
    ready, arrived = 0, RANKS
    E: tl.constexpr = RANKS * LOCAL
    program = tl.program_id(0)
    if program == 0:
        for step in range(1, RANKS):
            notify(signals, ready + rank, epoch, heaps, rank, (rank + step) % RANKS)
    elif program <= E * SENDERS:
        sender = (program - 1) % SENDERS
        source = (rank + 1 + (program - 1) // SENDERS // LOCAL) % RANKS  # this rank itself is last
        expert = (program - 1) // SENDERS % LOCAL
        if source != rank:
            wait(signals, ready + source, epoch, faults, TIMEOUT_NS)
        pairs = source * E + rank * LOCAL + expert
        begin = tl.cast(tl.load(here + expert * RANKS + source), tl.int64)
        begin_there = tl.cast(tl.load(there + pairs), tl.int64)
        for row in range(sender, tl.load(counts + pairs), SENDERS):
            put(returned + (begin_there + row) * H, y + (begin + row) * H, H, heaps, rank, source, BLOCK)
        notify(signals, arrived + rank, 1, heaps, rank, source, "add")
    else:
        token = tl.cast(program - 1 - E * SENDERS, tl.int64)
        for owner in range(RANKS):
            wait(signals, arrived + owner, epoch * LOCAL * SENDERS, faults, TIMEOUT_NS)
        for first in range(0, tl.where(token < T, H, 0), BLOCK):
            column = first + tl.arange(0, BLOCK)
            total = tl.zeros((BLOCK,), tl.float32)
            for choice in range(CHOICES):
                weight = tl.load(weights + token * CHOICES + choice)
                place = tl.cast(tl.load(places + token * CHOICES + choice), tl.int64)
                total += weight * tl.load(returned + place * H + column, mask=column < H).to(tl.float32)
            tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=column < H)


class MoeCombine:
    """The operation on one rank's heap, which it takes memory from; may be called again and again.

    `tokens`: of a rank, at most.
    """

    def __init__(
        self, heap: SymmetricHeap, tokens: int, hidden: int, experts: int, choices: int, dtype: torch.dtype
    ) -> None:
        if experts % heap.ranks:
            raise ValueError(f"{experts} experts do not divide into {heap.ranks} ranks")
        self._heap, self._experts = heap, experts
        self._returned = heap.tensor((tokens * choices, hidden), dtype)
        self._signals = heap.signals(2 * heap.ranks)
        self._epoch = 0

    def __call__(self, y: Tensor, routes: Routes, weights: Tensor) -> Tensor:
        """Return the tokens' sums (T, H) of the experts' outputs y (rows, H) with fp32 weights (T, CHOICES).

        Raises `SignalTimeout`.
        """
        heap, hidden, local = self._heap, self._returned.shape[1], self._experts // self._heap.ranks
        tokens, choices = routes.places.shape
        if tokens * choices > len(self._returned) or weights.shape != routes.places.shape:
            raise ValueError(
                f"weights {tuple(weights.shape)} for choices {tuple(routes.places.shape)}: there is room for "
                f"{len(self._returned)} choices"
            )
        out = torch.empty(tokens, hidden, dtype=y.dtype, device=y.device)
        counts = routes.counts.long()
        of_own = counts[:, heap.rank * local : (heap.rank + 1) * local].T.flatten()  # by expert, then source
        if y.shape != (rows := int(of_own.sum()), hidden):
            raise ValueError(f"outputs {tuple(y.shape)} for {rows} rows of {hidden}")
        self._epoch += 1
        waiting = max(tokens, 1)  # a rank without tokens must not run ahead of its peers, either
        heap.launch(
            moe_combine, (self._experts * SENDERS + 1 + waiting,), y.contiguous(),
            (of_own.cumsum(0) - of_own).int(), (counts.cumsum(1) - counts).int(), routes.counts,
            routes.places, weights.float().contiguous(), out, self._returned, self._signals,
            epoch=self._epoch, T=tokens, H=hidden, CHOICES=choices, LOCAL=local, SENDERS=SENDERS, BLOCK=BLOCK,
        )  # fmt: skip
        return out


def compilations(dtype: str = "bf16") -> Iterator[Compilation]:
    """Return the kernel as it is compiled for GPUs."""
    tables = dict.fromkeys(("here", "there", "counts", "places"), "*i32")
    tensors = dict.fromkeys(("y", "out", "returned"), f"*{dtype}") | {"weights": "*fp32"}
    sizes = dict.fromkeys(("T", "H", "CHOICES"), "i32")
    blocks = {"RANKS": 8, "LOCAL": 8, "SENDERS": SENDERS, "BLOCK": BLOCK, "TIMEOUT_NS": 1}
    yield Compilation("moe_combine", moe_combine, HEAP | tables | tensors | sizes, blocks, odd=ODD)
