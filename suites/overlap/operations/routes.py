"""Which tokens go to which rank's experts, the same on every rank, and products of rows sorted by expert."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.common import RankShare
from suites.overlap.subject import Subject


class ExpertRoute(NamedTuple):
    """The rows of one chunk of one rank's tokens that go to one rank, sorted by expert.

    `tokens`: of the source rank (rows,). `choices`: which of a token's top_k (rows,). `ends`: for each expert
    of the destination, the end of its rows.
    """

    tokens: Tensor
    choices: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class RoutedShare(RankShare):
    """A rank's share of an operation that moves rows between tokens' ranks and their experts' ranks."""

    received: Tensor

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        self.link = link
        self.tokens = self.workload.m // self.ranks
        self._routes: dict[int, list[list[list[ExpertRoute]]]] = {}

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

    def routed(self, chunks: int) -> list[list[list[ExpertRoute]]]:
        """Return the route of each source rank, destination and chunk of the source's tokens."""
        if chunks not in self._routes:
            self._routes[chunks] = self._all_routes(chunks)
        return self._routes[chunks]

    def route(self, source: int, chunk: int, chunks: int) -> ExpertRoute:
        """Return the route from a source to this rank's experts."""
        return self.routed(chunks)[source][self.rank][chunk]

    def chosen(self) -> Tensor:
        """Return the experts of every rank's tokens (ranks, tokens, top_k)."""
        scores = self.values("experts", 0, self.workload.m, self.workload.experts)
        return scores.topk(self.workload.top_k).indices.view(self.ranks, self.tokens, self.workload.top_k)

    def _all_routes(self, chunks: int) -> list[list[list[ExpertRoute]]]:
        experts, local = self.chosen(), self.workload.experts // self.ranks
        parts = list(itertools.pairwise(self.tokens * chunk // chunks for chunk in range(chunks + 1)))
        return [
            [
                [_route(experts[source], destination * local, local, *bounds) for bounds in parts]
                for destination in range(self.ranks)
            ]
            for source in range(self.ranks)
        ]


def _route(experts: Tensor, first: int, local: int, low: int, high: int) -> ExpertRoute:
    here = experts[low:high] - first
    tokens, choices = torch.where((here >= 0) & (here < local))
    chosen = here[tokens, choices]
    order = chosen.argsort(stable=True)
    ends = torch.bincount(chosen, minlength=local).cumsum(0).to(torch.int32)
    return ExpertRoute(tokens[order] + low, choices[order], ends)


def products(rows: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Return the product of rows sorted by expert with their experts."""
    return F.grouped_mm(rows, w, offs=ends)
