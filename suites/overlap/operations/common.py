"""What the timed operations share: their protocol, inputs from a seed, and the comparison with float64."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from suites.overlap.subject import Subject

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
