"""Which tokens go to which rank's experts, the same on every rank, and products of rows sorted by expert."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.operations.common import RankShare


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


def routes(part: RankShare, chunks: int) -> list[list[list[ExpertRoute]]]:
    """Return the route of each source rank, destination and chunk of the source's tokens."""
    workload, ranks = part.workload, part.ranks
    rows, local = workload.m // ranks, workload.experts // ranks
    scores = part.values("experts", 0, workload.m, workload.experts)
    experts = scores.topk(workload.top_k).indices.view(ranks, rows, workload.top_k)
    parts = list(itertools.pairwise(rows * chunk // chunks for chunk in range(chunks + 1)))
    return [
        [
            [_route(experts[source], destination * local, local, *bounds) for bounds in parts]
            for destination in range(ranks)
        ]
        for source in range(ranks)
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
