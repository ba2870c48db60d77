"""What the timed operations share, and collectives that overlap with products, by each algorithm.

`Subject.algorithm` chooses whether a collective comes before or after its products, goes in chunks, or is
one-sided.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.symmetric.heap import SymmetricHeap
from suites.overlap.workload import Subject

CHECKED_ROWS = 48  # rows of the result that are compared with float64, taken at equal distances

NOT_COMMUNICATED = 0
"""In place of a number of chunks: compute on what the buffers have, and communicate nothing."""

Spans = dict[str, list[tuple[float, float]]]
"""Begins and ends of what each lane did, by `time.perf_counter`: one clock for all ranks of a machine."""


class RankShare:
    """A rank's share of an operation, of which `sent_B` are the bytes that it must send.

    `run(chunks)` does it once, with a rank's part in so many chunks where the algorithm has any; `compute()`
    and `communicate(chunks)` do a part of it alone. `error()`: of checked rows, over their largest value.
    """

    def __init__(self, subject: Subject, place: OneSided | SymmetricHeap | RankGroup) -> None:
        self.subject, self.workload = subject, subject.workload
        self.rank, self.ranks = place.rank, place.ranks
        self.in_turn = subject.order == "ring"  # puts go to one peer at a time

        self.received = torch.empty(0)  # what a run gets from others

    def forget(self) -> None:
        """Make what the last run received invalid, so that the next cannot use it."""
        self.received.fill_(torch.nan)

    def values(self, name: str, rank: int, *shape: int) -> Tensor:
        """Return the same normal values on every rank that asks for those of `rank`."""
        number = sum(map(ord, name)) * 1000 + rank
        generator = torch.Generator().manual_seed(self.subject.seed * 1_000_003 + number)
        return torch.randn(*shape, generator=generator)

    def chosen_experts(self) -> Tensor:
        """Return the experts of all tokens (M, top_k), all different, the same on every rank."""
        scores = self.values("experts", 0, self.workload.m, self.workload.experts)
        return scores.topk(self.workload.top_k).indices

    def peers(self) -> list[int]:
        """Return the peers in rotated order."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    def putting(self, chunks: int) -> list[tuple[int, int]]:
        """Return (peer, chunk) of all puts in order: peer by peer, or all peers chunk by chunk."""
        return self._ordered(self.peers(), chunks)

    def arriving(self, chunks: int) -> list[tuple[int, int]]:
        """Return the peers and chunks in the order in which they arrive: that of the puts, seen from here."""
        return self._ordered([(self.rank - step) % self.ranks for step in range(1, self.ranks)], chunks)

    def _ordered(self, peers: Sequence[int], chunks: int) -> list[tuple[int, int]]:
        if self.in_turn:
            return [(peer, chunk) for peer in peers for chunk in range(chunks)]
        return [(peer, chunk) for chunk in range(chunks) for peer in peers]

    def put_groups(self, chunks: int) -> list[tuple[int, int, int]]:
        """Return (peer, first chunk, end) of what one product computes before its chunks are put.

        The first is one chunk. Each further one is at most as large as all before it: products are large, and
        the link sends those meanwhile.
        """
        if not self.in_turn:
            return [(peer, *group) for group in _growing(chunks, 0) for peer in self.peers()]
        peers = enumerate(self.peers())
        return [(peer, *group) for number, peer in peers for group in _growing(chunks, number * chunks)]

    def arrivals(self, link: OneSided, signals: range, chunks: int) -> Iterator[tuple[int, int, int]]:
        """Wait for the peers' chunks, counted by `signals`; yield (peer, first chunk, end) as they arrive."""
        taken = dict.fromkeys(self.peers(), 0)
        for peer, chunk in self.arriving(chunks):
            if chunk >= taken[peer]:
                taken[peer] = link.wait(signals[peer], chunk + 1)
                yield peer, chunk, taken[peer]


def _growing(chunks: int, before: int) -> Iterator[tuple[int, int]]:
    """Yield the first chunk and the end of groups, each at most as large as what came before it."""
    first = 0
    while first < chunks:
        end = min(first + max(before + first, 1), chunks)
        yield first, end
        first = end


def spanned(spans: Spans | None, lane: str, work: Callable[..., object], *given: object) -> None:
    """Do the work; where spans are recorded, add its begin and end to the lane."""
    begin_s = time.perf_counter()
    work(*given)
    if spans is not None:
        spans.setdefault(lane, []).append((begin_s, time.perf_counter()))


def checked(rows: int) -> Tensor:
    """Return the numbers of the rows that are checked."""
    return torch.linspace(0, rows - 1, min(rows, CHECKED_ROWS)).long()


def worst_error(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest value expected."""
    return float((result.double() - expected).abs().max() / expected.abs().max())


class RankGroup:
    """The ranks that communicate, numbered within the group: all of them, or those of a process group."""

    def __init__(self, link: OneSided, process_group: dist.ProcessGroup | None = None) -> None:
        self.link, self.process_group = link, process_group
        self.members = dist.get_process_group_ranks(process_group)
        self.rank, self.ranks = self.members.index(link.rank), len(self.members)


class OverlappedCollective(RankShare):
    """A collective of (rows, columns) of each rank, with a buffer and signals of its own; once per run.

    No barrier is needed between those of one run: a peer that is ahead writes only what this rank has not yet
    read. Before the next run every rank has waited for all that was put to it. Autograd changes no source
    within a run, because a put holds its storage and autograd adds in place only to its own.
    """

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        super().__init__(subject, group)
        self.group, self.link, self.rows = group, group.link, rows
        self.sent_B = float((self.ranks - 1) * rows * columns * torch.float32.itemsize)
        self.computed_s = 0.0  # of the products with this collective, when they were last computed alone
        self._arrived = self.link.signals(self.ranks)

    def bounds(self, chunks: int) -> list[tuple[int, int]]:
        """Return the first row of each chunk and the one after its last."""
        return list(itertools.pairwise(self.rows * chunk // chunks for chunk in range(chunks + 1)))

    def of_rank(self, matrix: Tensor, rank: int) -> Tensor:
        """Return a rank's rows of those of all ranks."""
        return matrix[rank * self.rows : (rank + 1) * self.rows]

    def _put(self, peer: int, buffer: int, row: int, source: Tensor, signal: int) -> None:
        at_B = row * source.shape[1] * source.itemsize
        self.link.put(self.group.members[peer], buffer, at_B, source, signal, self.in_turn)


UseGathered = Callable[[Tensor, int], None]
"""use(rows, first): computes with gathered rows, the first of which is row `first`."""

MakeSummand = Callable[[int, Tensor], None]
"""make(first, rows): writes this rank's summand of these rows, the first of which is row `first`."""


class AllGather(OverlappedCollective):
    """Gathers x (rows, columns) of every rank. `spans`: where its call is recorded, as a lane "arrivals"."""

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        super().__init__(subject, group, rows, columns)
        self.spans: Spans | None = None
        self.gathered = torch.zeros(self.ranks * rows, columns)
        self._buffer = self.link.buffer(self.gathered)

    def multiply(self, x: Tensor, product: UseGathered, chunks: int, keep: bool = False) -> None:
        """Call `product` for all gathered rows. `keep`: `gathered` has all of them afterwards in any case."""
        if chunks == NOT_COMMUNICATED:
            begin_s = time.perf_counter()
            product(self.gathered, 0)
            self.computed_s = time.perf_counter() - begin_s
        elif self.subject.algorithm == "in_sequence":
            spanned(self.spans, "arrivals", self._collective, x)
            product(self.gathered, 0)
        elif self.subject.algorithm == "decomposed":
            self._decomposed(x, product, chunks, keep)
        else:
            self._symmetric(x, product, chunks, keep)

    def communicate(self, x: Tensor, chunks: int) -> None:
        """Gather without computation."""
        if self.subject.algorithm == "symmetric":
            self._put_rows(x, chunks)
            for peer in self.peers():
                self.link.wait(self._arrived[peer], chunks)
        elif self.subject.algorithm == "decomposed":
            self._decomposed(x, lambda rows, first: None, chunks, False)
        else:
            self._collective(x)

    def _collective(self, x: Tensor) -> None:
        dist.all_gather_into_tensor(self.gathered, x, group=self.group.process_group)

    def _decomposed(self, x: Tensor, product: UseGathered, chunks: int, keep: bool) -> None:
        works: list[tuple[Any, Tensor]] = []
        for low, high in self.bounds(chunks):
            whole = x.new_empty(self.ranks, high - low, x.shape[1])
            work = dist.all_gather_into_tensor(
                whole.view(-1, x.shape[1]), x[low:high], group=self.group.process_group, async_op=True
            )
            works.append((work, whole))
        for (work, whole), (low, high) in zip(works, self.bounds(chunks), strict=True):
            work.wait()
            for rank, rows in enumerate(whole):
                product(rows, rank * self.rows + low)
                if keep:
                    self.of_rank(self.gathered, rank)[low:high] = rows

    def _symmetric(self, x: Tensor, product: UseGathered, chunks: int, keep: bool) -> None:
        """Multiply the own rows first, then all that have arrived of a peer in one product."""
        self._put_rows(x, chunks)
        if keep:
            self.of_rank(self.gathered, self.rank).copy_(x)
        product(x, self.rank * self.rows)
        bounds = self.bounds(chunks)
        for peer, first, end in self.arrivals(self.link, self._arrived, chunks):
            low, high = bounds[first][0], bounds[end - 1][1]
            product(self.of_rank(self.gathered, peer)[low:high], peer * self.rows + low)

    def _put_rows(self, x: Tensor, chunks: int) -> None:
        bounds, own = self.bounds(chunks), self.rank * self.rows
        for peer, chunk in self.putting(chunks):
            low, high = bounds[chunk]
            self._put(peer, self._buffer, own + low, x[low:high], self._arrived[self.rank])


class ReduceScatter(OverlappedCollective):
    """Sums a matrix of every rank (ranks * rows, columns); each rank gets the sum of its rows."""

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        super().__init__(subject, group, rows, columns)
        self.partial = torch.zeros(self.ranks * rows, columns)
        self.received = torch.zeros(self.ranks, rows, columns)
        self._buffer = self.link.buffer(self.received)
        self._own = self.of_rank(self.partial, self.rank)

    def multiply(
        self, product: MakeSummand, out: Tensor, chunks: int, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Write the sum of this rank's rows into `out`; `meanwhile` is other computation."""
        if chunks == NOT_COMMUNICATED:
            begin_s = time.perf_counter()
            product(0, self.partial)
            meanwhile()
            self.computed_s = time.perf_counter() - begin_s
            out.copy_(self._own)
        elif self.subject.algorithm == "in_sequence":
            product(0, self.partial)
            later, group = self.subject.weight_gradient_overlaps, self.group.process_group
            work = dist.reduce_scatter_tensor(out, self.partial, group=group, async_op=later)
            meanwhile()
            if work is not None:
                work.wait()
        elif self.subject.algorithm == "decomposed":
            self._decomposed(product, out, chunks, meanwhile)
        else:
            self._symmetric(product, out, chunks, meanwhile)

    def communicate(self, out: Tensor, chunks: int) -> None:
        """Reduce and scatter without computation."""
        if self.subject.algorithm == "symmetric":
            for peer, chunk in self.putting(chunks):
                self._put_part(peer, chunk, chunks)
            self._add(out, chunks)
        elif self.subject.algorithm == "decomposed":
            self._decomposed(lambda first, rows: None, out, chunks, lambda: None)
        else:
            dist.reduce_scatter_tensor(out, self.partial, group=self.group.process_group)

    def _decomposed(
        self, product: MakeSummand, out: Tensor, chunks: int, meanwhile: Callable[[], object]
    ) -> None:
        works: list[tuple[Any, Tensor]] = []
        for low, high in self.bounds(chunks):
            whole = out.new_empty(self.ranks, high - low, out.shape[1])
            for rank, rows in enumerate(whole):
                product(rank * self.rows + low, rows)
            work = dist.reduce_scatter_tensor(
                out[low:high], whole.view(-1, out.shape[1]), group=self.group.process_group, async_op=True
            )
            works.append((work, whole))
        meanwhile()
        for work, _ in works:
            work.wait()

    def _symmetric(
        self, product: MakeSummand, out: Tensor, chunks: int, meanwhile: Callable[[], object]
    ) -> None:
        """Compute the peers' rows first; put each chunk as soon as its product ends."""
        bounds = self.bounds(chunks)
        for peer, first, end in self.put_groups(chunks):
            low, high = (peer * self.rows + bound for bound in (bounds[first][0], bounds[end - 1][1]))
            product(low, self.partial[low:high])
            for chunk in range(first, end):
                self._put_part(peer, chunk, chunks)
        product(self.rank * self.rows, self._own)
        meanwhile()
        self._add(out, chunks)

    def _put_part(self, peer: int, chunk: int, chunks: int) -> None:
        low, high = self.bounds(chunks)[chunk]
        part = self.of_rank(self.partial, peer)[low:high]
        self._put(peer, self._buffer, self.rank * self.rows + low, part, self._arrived[self.rank])

    def _add(self, out: Tensor, chunks: int) -> None:
        """Add the parts in the order of ranks, chunk by chunk as they arrive."""
        parts = [self._own if rank == self.rank else self.received[rank] for rank in range(self.ranks)]
        for number, (low, high) in enumerate(self.bounds(chunks)):
            for peer in self.peers():
                self.link.wait(self._arrived[peer], number + 1)
            torch.add(parts[0][low:high], parts[1][low:high], out=out[low:high])
            for part in parts[2:]:
                out[low:high].add_(part[low:high])
