"""What the timed operations share, and collectives that overlap with products, by each algorithm.

Operations have one protocol, inputs from a seed, and are compared with float64. An all-gather comes with
products of what it gathers, a reduce-scatter with products to scatter: `Subject.algorithm` chooses whether
the collective comes first or last, goes in chunks, or is one-sided.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.workload import Subject

CHECKED_ROWS = 48
"""Rows of the result that are compared with float64, taken at equal distances."""


Spans = dict[str, list[tuple[float, float]]]
"""Begins and ends of what each lane did, by `time.perf_counter`: one clock for all ranks of a machine."""


class TimedOperation(Protocol):
    """One variant of an operation on one rank."""

    @property
    def sent_B(self) -> float:
        """Return the bytes that this rank must send, whatever the algorithm."""

    def forget(self) -> None:
        """Make what the last run received invalid, so that the next cannot use it."""

    def run(self, chunks: int) -> None:
        """Run it once. `chunks`: into how many a rank's part is divided, where the algorithm does."""

    def compute(self) -> None:
        """Run the computation without communication, in one part."""

    def communicate(self, chunks: int) -> None:
        """Run the communication without computation."""

    def error(self) -> float:
        """Return the largest error of checked rows of the last result, over their largest value."""


class RankOfMany(Protocol):
    """What knows this rank and their number: a link or a heap."""

    rank: int
    ranks: int


class RankShare:
    """A rank's share of an operation."""

    def __init__(self, subject: Subject, place: RankOfMany) -> None:
        self.subject, self.workload = subject, subject.workload
        self.rank, self.ranks = place.rank, place.ranks

    def values(self, name: str, rank: int, *shape: int) -> Tensor:
        """Return the same normal values on every rank that asks for those of `rank`."""
        number = sum(map(ord, name)) * 1000 + rank
        generator = torch.Generator().manual_seed(self.subject.seed * 1_000_003 + number)
        return torch.randn(*shape, generator=generator)

    def peers(self) -> list[int]:
        """Return the peers in rotated order."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    def put_chunks(self, chunks: int, one: Callable[[int, int], None]) -> None:
        """Call `one(peer, chunk)` for all puts: peer by peer, or all peers chunk by chunk."""
        if self.subject.order == "ring":
            pairs = [(peer, chunk) for peer in self.peers() for chunk in range(chunks)]
        else:
            pairs = [(peer, chunk) for chunk in range(chunks) for peer in self.peers()]
        for peer, chunk in pairs:
            one(peer, chunk)

    def put_groups(self, chunks: int) -> list[tuple[int, int, int]]:
        """Return (peer, first chunk, end) of what one product computes before its chunks are put.

        The first is one chunk. Each further one is at most as large as all before it: products are large, and
        the link sends those meanwhile. Where it ends sooner, communication is short enough for the own part,
        which comes last, to hide it.
        """
        groups: list[tuple[int, int, int]] = []
        if self.subject.order == "ring":
            for number, peer in enumerate(self.peers()):
                first = 0
                while first < chunks:
                    end = min(first + max(number * chunks + first, 1), chunks)
                    groups.append((peer, first, end))
                    first = end
            return groups
        first = 0
        while first < chunks:
            end = min(first + max(first, 1), chunks)
            groups.extend((peer, first, end) for peer in self.peers())
            first = end
        return groups

    def arriving(self, chunks: int) -> list[tuple[int, int]]:
        """Return the peers and chunks in the order in which they arrive: that of the puts, seen from here."""
        sources = [(self.rank - step) % self.ranks for step in range(1, self.ranks)]
        if self.subject.order == "ring":
            return [(peer, chunk) for peer in sources for chunk in range(chunks)]
        return [(peer, chunk) for chunk in range(chunks) for peer in sources]

    @property
    def in_turn(self) -> bool:
        """Return whether puts go to one peer at a time."""
        return self.subject.order == "ring"


def spanned(spans: Spans | None, lane: str, work: Callable[..., object], *given: object) -> None:
    """Do the work; where spans are recorded, add its begin and end to the lane."""
    if spans is None:
        work(*given)
        return
    begin_s = time.perf_counter()
    work(*given)
    spans.setdefault(lane, []).append((begin_s, time.perf_counter()))


def checked(rows: int) -> Tensor:
    """Return the numbers of the rows that are checked."""
    return torch.linspace(0, rows - 1, min(rows, CHECKED_ROWS)).long()


def worst_error(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest value expected."""
    return float((result.double() - expected).abs().max() / expected.abs().max())


NOT_COMMUNICATED = 0
"""In place of a number of chunks: compute on what the buffers have, and communicate nothing."""


class RankGroup:
    """The ranks that communicate, numbered within the group: all of them, or those of a process group."""

    def __init__(self, link: OneSided, process_group: dist.ProcessGroup | None = None) -> None:
        self.link, self.process_group = link, process_group
        self.members = dist.get_process_group_ranks(process_group)
        self.rank, self.ranks = self.members.index(link.rank), len(self.members)


class OverlappedCollective(RankShare):
    """A collective of `rows` of each rank, with a buffer and signals of its own. It may be used once per run.

    No barrier divides the collectives of one run. None is needed: a peer that is ahead writes only what this
    rank has not yet read in this run. Before the next run, whose barrier all ranks reach, every rank has
    waited for all that was put to it: buffers have been read, and sources may change. Autograd changes none
    within a run, because a put holds its source's storage and autograd adds in place only to its own.
    """

    def __init__(self, subject: Subject, group: RankGroup, rows: int) -> None:
        super().__init__(subject, group)
        self.group, self.link, self.rows = group, group.link, rows
        self.computed_s = 0.0  # of the products with this collective, when they were last computed alone

    @property
    def sent_B(self) -> float:
        """Return the bytes that this rank must send."""
        raise NotImplementedError

    def bounds(self, chunks: int) -> list[tuple[int, int]]:
        """Return the first row of each chunk and the one after its last."""
        return list(itertools.pairwise(self.rows * chunk // chunks for chunk in range(chunks + 1)))

    def _put(self, peer: int, buffer: int, row: int, source: Tensor, signal: int) -> None:
        at_B = row * source.shape[1] * source.itemsize
        self.link.put(self.group.members[peer], buffer, at_B, source, signal, self.in_turn)


class AllGather(OverlappedCollective):
    """Gathers x (rows, columns) of every rank. `spans`: where its call is recorded, as a lane "arrivals"."""

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        super().__init__(subject, group, rows)
        self.spans: Spans | None = None
        self.gathered = torch.zeros(self.ranks * rows, columns)
        self._buffer, self._arrived = self.link.buffer(self.gathered), self.link.signals(self.ranks)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the own rows, once per peer."""
        return float((self.ranks - 1) * self.gathered[: self.rows].nbytes)

    def multiply(
        self, x: Tensor, product: Callable[[Tensor, int], None], chunks: int, keep: bool = False
    ) -> None:
        """Call `product(rows, first)` for all gathered rows, the first of which is row `first`.

        `keep`: `gathered` has all rows afterwards, whatever the algorithm.
        """
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

    def _decomposed(self, x: Tensor, product: Callable[[Tensor, int], None], chunks: int, keep: bool) -> None:
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
                first = rank * self.rows
                product(rows, first + low)
                if keep:
                    self.gathered[first + low : first + high] = rows

    def _symmetric(self, x: Tensor, product: Callable[[Tensor, int], None], chunks: int, keep: bool) -> None:
        """Multiply the own rows first, then all that have arrived of a peer in one product."""
        self._put_rows(x, chunks)
        own = self.rank * self.rows
        if keep:
            self.gathered[own : own + self.rows] = x
        product(x, own)
        bounds, multiplied = self.bounds(chunks), dict.fromkeys(self.peers(), 0)
        for peer, chunk in self.arriving(chunks):
            if chunk < multiplied[peer]:
                continue
            arrived = self.link.wait(self._arrived[peer], chunk + 1)
            low, high = (peer * self.rows + bound for bound in (bounds[chunk][0], bounds[arrived - 1][1]))
            product(self.gathered[low:high], low)
            multiplied[peer] = arrived

    def _put_rows(self, x: Tensor, chunks: int) -> None:
        bounds, own = self.bounds(chunks), self.rank * self.rows

        def put(peer: int, chunk: int) -> None:
            low, high = bounds[chunk]
            self._put(peer, self._buffer, own + low, x[low:high], self._arrived[self.rank])

        self.put_chunks(chunks, put)


class ReduceScatter(OverlappedCollective):
    """Sums a matrix of every rank (ranks * rows, columns); each rank gets the sum of its rows."""

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        super().__init__(subject, group, rows)
        self.partial = torch.zeros(self.ranks * rows, columns)
        self.received = torch.zeros(self.ranks, rows, columns)
        self._buffer, self._arrived = self.link.buffer(self.received), self.link.signals(self.ranks)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the parts of the peers' rows."""
        return float((self.ranks - 1) * self.received[0].nbytes)

    def multiply(
        self,
        product: Callable[[int, Tensor], None],
        out: Tensor,
        chunks: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the sum of this rank's rows into `out`.

        `product(first, rows)` writes this rank's summand of these rows, the first of which is row `first`.
        `meanwhile` is other computation, for which the last parts need not wait.
        """
        if chunks == NOT_COMMUNICATED:
            begin_s = time.perf_counter()
            product(0, self.partial)
            meanwhile()
            self.computed_s = time.perf_counter() - begin_s
            out.copy_(self._own())
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
            self.put_chunks(chunks, lambda peer, chunk: self._put_part(peer, chunk, chunks))
            self._add(out, chunks)
        elif self.subject.algorithm == "decomposed":
            self._decomposed(lambda first, rows: None, out, chunks, lambda: None)
        else:
            dist.reduce_scatter_tensor(out, self.partial, group=self.group.process_group)

    def _decomposed(
        self,
        product: Callable[[int, Tensor], None],
        out: Tensor,
        chunks: int,
        meanwhile: Callable[[], None],
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
        self,
        product: Callable[[int, Tensor], None],
        out: Tensor,
        chunks: int,
        meanwhile: Callable[[], None],
    ) -> None:
        """Compute the peers' rows first; put each chunk as soon as its product ends."""
        bounds = self.bounds(chunks)
        for peer, first, end in self.put_groups(chunks):
            low, high = (peer * self.rows + bound for bound in (bounds[first][0], bounds[end - 1][1]))
            product(low, self.partial[low:high])
            for chunk in range(first, end):
                self._put_part(peer, chunk, chunks)
        product(self.rank * self.rows, self._own())
        meanwhile()
        self._add(out, chunks)

    def _put_part(self, peer: int, chunk: int, chunks: int) -> None:
        low, high = self.bounds(chunks)[chunk]
        part = self.partial[peer * self.rows + low : peer * self.rows + high]
        self._put(peer, self._buffer, self.rank * self.rows + low, part, self._arrived[self.rank])

    def _own(self) -> Tensor:
        return self.partial[self.rank * self.rows : (self.rank + 1) * self.rows]

    def _add(self, out: Tensor, chunks: int) -> None:
        """Add the parts in the order of ranks, chunk by chunk as they arrive."""
        parts = [self._own() if rank == self.rank else self.received[rank] for rank in range(self.ranks)]
        for number, (low, high) in enumerate(self.bounds(chunks)):
            for peer in self.peers():
                self.link.wait(self._arrived[peer], number + 1)
            torch.add(parts[0][low:high], parts[1][low:high], out=out[low:high])
            for part in parts[2:]:
                out[low:high].add_(part[low:high])
