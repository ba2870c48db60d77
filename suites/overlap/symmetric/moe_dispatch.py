"""MoE dispatch: every token goes to the ranks that have its experts, straight to its place among their rows.

Per rank: x (T, H) tokens, experts (T, CHOICES) of each; rank r has LOCAL experts, from r * LOCAL. A pair is a
token with one of its choices; `order` lists the pairs by expert. On every rank, `rows` (capacity, H) are
sorted by (expert, source rank, token), without gaps.

Where rows belong depends on all ranks' counts, exchanged first: `counts` (2, RANKS, E) is [parity of the
epoch, source rank, expert]. A rank that sends its counts no longer needs the rows of the epoch before. Its
counts are overwritten two epochs later, when every rank has used them: the call between ended only when all
had sent their rows of it.

Signals: `counted` (2, RANKS) [parity, source], set to the epoch, and `arrived` (RANKS) [source], to which
each sending program of the source adds 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.overlap.symmetric.heap import HEAP, ODD, SymmetricHeap
from suites.overlap.symmetric.primitives import notify, put, wait

BLOCK = 1024  # elements that a program moves at once
SENDERS = 2  # programs per expert: each sends every SENDERS-th row


class Routes(NamedTuple):
    """How all ranks' tokens are distributed: what is needed to return the experts' outputs."""

    counts: Tensor  # (RANKS, E) int32: pairs of each source rank with each expert
    places: Tensor  # (T, CHOICES) int32: of each of this rank's pairs, in the order of experts


class Dispatched(NamedTuple):
    """What a rank has after a dispatch. The rows are in the heap, valid until this rank's next dispatch."""

    rows: Tensor  # (all pairs with this rank's experts, H)
    rows_per_expert: Tensor  # (E / RANKS,) int64
    routes: Routes


@triton.jit
def moe_dispatch(
    x, order, begins, own_counts, all_counts, rows, counts, signals, heaps, faults, rank, epoch, H, CHOICES,
    RANKS: tl.constexpr, LOCAL: tl.constexpr,
    SENDERS: tl.constexpr, BLOCK: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Program 0 sends the counts, the last one waits for all rows, those between send one expert's rows.

    `begins` (E): where an expert's pairs begin in `order`. LOCAL: experts per rank.
    """
    E: tl.constexpr = RANKS * LOCAL
    counted, arrived = epoch % 2 * RANKS, 2 * RANKS
    counts += epoch % 2 * RANKS * E
    program = tl.program_id(0)
    if program == 0:
        for step in range(RANKS):
            peer = (rank + step) % RANKS
            put(counts + rank * E, own_counts, E, heaps, rank, peer, BLOCK)
            notify(signals, counted + rank, epoch, heaps, rank, peer)
    elif program <= E * SENDERS:
        sender = (program - 1) % SENDERS
        expert = ((rank + 1) * LOCAL + (program - 1) // SENDERS) % E  # this rank's own are last
        owner = expert // LOCAL
        for source in range(RANKS):
            wait(signals, counted + source, epoch, faults, TIMEOUT_NS)
        ranks = tl.arange(0, triton.next_power_of_2(RANKS))[:, None]
        experts = owner * LOCAL + tl.arange(0, triton.next_power_of_2(LOCAL))[None, :]
        inside = (ranks < RANKS) & (experts < (owner + 1) * LOCAL)
        table = tl.load(counts + ranks * E + experts, mask=inside, other=0)
        if sender == 0:
            tl.store(all_counts + ranks * E + experts, table, mask=inside & (experts == expert))
        before = (experts < expert) | ((experts == expert) & (ranks < rank))
        there = tl.cast(tl.sum(tl.where(before, table, 0)), tl.int64)
        begin = tl.load(begins + expert)
        for row in range(sender, tl.load(own_counts + expert), SENDERS):
            token = tl.cast(tl.load(order + begin + row) // CHOICES, tl.int64)
            put(rows + (there + row) * H, x + token * H, H, heaps, rank, owner, BLOCK)
        notify(signals, arrived + rank, 1, heaps, rank, owner, "add")
    else:
        for source in range(RANKS):
            wait(signals, arrived + source, epoch * LOCAL * SENDERS, faults, TIMEOUT_NS)


class MoeDispatch:
    """The operation on one rank's heap, which it takes memory from; may be called again and again.

    `tokens`: of a rank, at most. The heap has room for all pairs of all ranks.
    """

    def __init__(
        self, heap: SymmetricHeap, tokens: int, hidden: int, experts: int, choices: int, dtype: torch.dtype
    ) -> None:
        if experts % heap.ranks:
            raise ValueError(f"{experts} experts do not divide into {heap.ranks} ranks")
        self._heap, self._tokens, self._experts, self._choices = heap, tokens, experts, choices
        self._rows = heap.tensor((heap.ranks * tokens * choices, hidden), dtype)
        self._counts = heap.tensor((2, heap.ranks, experts), torch.int32)
        self._signals = heap.signals(3 * heap.ranks)
        self._epoch = 0

    def __call__(self, x: Tensor, experts: Tensor) -> Dispatched:
        """Send the tokens x (T, H) to their experts (T, CHOICES); raises `SignalTimeout`."""
        heap, count, hidden = self._heap, self._experts, self._rows.shape[1]
        if len(x) > self._tokens or (*x.shape, self._choices) != (len(experts), hidden, experts.shape[1]):
            raise ValueError(
                f"tokens {tuple(x.shape)} with choices {tuple(experts.shape)}: there is room for "
                f"({self._tokens}, {hidden}) with ({self._tokens}, {self._choices})"
            )
        self._epoch += 1
        chosen = experts.flatten().long()
        order = chosen.argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        own = torch.zeros(count, dtype=torch.int64, device=x.device).scatter_add_(
            0, chosen, torch.ones_like(chosen)
        )
        all_counts = torch.empty(heap.ranks, count, dtype=torch.int32, device=x.device)
        local = count // heap.ranks
        heap.launch(
            moe_dispatch, (count * SENDERS + 2,), x.contiguous(), order.int(), (own.cumsum(0) - own).int(),
            own.int(), all_counts, self._rows, self._counts, self._signals,
            epoch=self._epoch, H=hidden, CHOICES=self._choices, LOCAL=local, SENDERS=SENDERS, BLOCK=BLOCK,
        )  # fmt: skip
        here = all_counts[:, heap.rank * local : (heap.rank + 1) * local].sum(0)
        return Dispatched(
            self._rows[: int(here.sum())], here, Routes(all_counts, places.int().view_as(experts))
        )


def compilations(dtype: str = "bf16") -> Iterator[Compilation]:
    """Return the kernel as it is compiled for GPUs."""
    tables = dict.fromkeys(("order", "begins", "own_counts", "all_counts", "counts"), "*i32")
    tensors = {"x": f"*{dtype}", "rows": f"*{dtype}", **dict.fromkeys(("H", "CHOICES"), "i32")}
    blocks = {"RANKS": 8, "LOCAL": 8, "SENDERS": SENDERS, "BLOCK": BLOCK, "TIMEOUT_NS": 1}
    yield Compilation("moe_dispatch", moe_dispatch, HEAP | tables | tensors, blocks, odd=ODD)
