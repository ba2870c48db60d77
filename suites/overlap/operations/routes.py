"""Which tokens go to which rank's experts, the same on every rank, and products of rows sorted by expert."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.common import RankShare
from suites.overlap.subject import Subject


class ExpertRoute(NamedTuple):
    """The rows of one rank's tokens that go to one rank, or to some of its experts, sorted by expert.

    `tokens`: of the source rank (rows,). `choices`: which of a token's top_k (rows,). `ends`: for each of
    these experts, the end of its rows.
    """

    tokens: Tensor
    choices: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class ExpertRows(NamedTuple):
    """Some consecutive experts of a rank, and their rows of a route to it: from `first` to `end`."""

    experts: slice
    first: int
    end: int

    @property
    def rows(self) -> slice:
        """Return the rows."""
        return slice(self.first, self.end)


class RoutedShare(RankShare):
    """A rank's share of an operation that moves rows between tokens' ranks and their experts' ranks."""

    received: Tensor

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        self.link = link
        self.tokens = self.workload.m // self.ranks
        self.local_experts = self.workload.experts // self.ranks
        experts = self.chosen()
        self.routes = [
            [
                _route(experts[source], destination * self.local_experts, self.local_experts)
                for destination in range(self.ranks)
            ]
            for source in range(self.ranks)
        ]  # of each source rank and destination

    def forget(self) -> None:
        """Make what the last run received invalid."""
        self.received.fill_(torch.nan)

    def run(self, chunks: int) -> None:
        """Do the operation once, by the subject's algorithm."""
        {"in_sequence": self._in_sequence, "decomposed": self._decomposed, "symmetric": self._symmetric}[
            self.subject.algorithm
        ](chunks)

    def _in_sequence(self, chunks: int) -> None:
        self._decomposed(1)

    def _decomposed(self, chunks: int) -> None:
        raise NotImplementedError

    def _symmetric(self, chunks: int) -> None:
        raise NotImplementedError

    def part(self, route: ExpertRoute, chunks: int, first: int = 0, end: int | None = None) -> ExpertRows:
        """Return chunks `first` to `end` of a route, all by default.

        A chunk is the rows of consecutive experts: each expert multiplies its rows of a source at once.
        """
        low, high = (self.local_experts * one // chunks for one in (first, chunks if end is None else end))
        starts = [0, *route.ends.tolist()]
        return ExpertRows(slice(low, high), starts[low], starts[high])

    def from_source(self, source: int) -> ExpertRoute:
        """Return the route from a source to this rank's experts."""
        return self.routes[source][self.rank]

    def to(self, destination: int) -> ExpertRoute:
        """Return the route of this rank's tokens to a destination's experts."""
        return self.routes[self.rank][destination]

    def chosen(self) -> Tensor:
        """Return the experts of every rank's tokens (ranks, tokens, top_k)."""
        scores = self.values("experts", 0, self.workload.m, self.workload.experts)
        return scores.topk(self.workload.top_k).indices.view(self.ranks, self.tokens, self.workload.top_k)


def _route(chosen: Tensor, first: int, local: int) -> ExpertRoute:
    """Return the rows for experts `first` to `first + local` of tokens that chose (tokens, top_k)."""
    here = chosen - first
    tokens, choices = torch.where((here >= 0) & (here < local))
    experts = here[tokens, choices]
    order = experts.argsort(stable=True)
    ends = torch.bincount(experts, minlength=local).cumsum(0).to(torch.int32)
    return ExpertRoute(tokens[order], choices[order], ends)


def products(rows: Tensor, w: Tensor, route: ExpertRoute, part: ExpertRows) -> Tensor:
    """Return the products of a part of a route's rows with their experts; `rows` are those of the part."""
    return F.grouped_mm(rows, w[part.experts], offs=route.ends[part.experts] - part.first)
