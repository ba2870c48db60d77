"""AllGather + GEMM: y (M, N) = all-gather(x (M / ranks, K)) @ w (K, N), each rank with a w of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.collectives import NOT_COMMUNICATED, AllGather, RankGroup
from suites.overlap.operations.common import RankShare, Spans, checked, spanned, worst_error
from suites.overlap.subject import Subject


class TimedAllGatherGemm(RankShare):
    """The operation on this rank. `spans`: where the busy times of a run's lanes are recorded."""

    gathers_by: type[AllGather] = AllGather

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        m, k, n = self.workload.m, self.workload.k, self.workload.n
        rows = m // self.ranks
        self.x, self.w = self.values("x", self.rank, rows, k), self.values("w", self.rank, k, n)
        self.y = torch.empty(m, n)
        self.gather = self.gathers_by(subject, RankGroup(link), rows, k)
        self.spans: Spans | None = None

    @property
    def sent_B(self) -> float:
        """Return the bytes of the own rows, once per peer."""
        return self.gather.sent_B

    def forget(self) -> None:
        """Make what the last run received invalid."""
        self.gather.gathered.fill_(torch.nan)

    def run(self, chunks: int) -> None:
        """Compute y once."""
        self.gather.spans = self.spans
        self.gather.multiply(self.x, self._part, chunks)

    def compute(self) -> None:
        """Multiply without communication."""
        self.run(NOT_COMMUNICATED)

    def multiply(self, rows: Tensor, out: Tensor, first: int) -> None:
        """Write the product of these gathered rows, the first of which is row `first`."""
        torch.mm(rows, self.w, out=out)

    def communicate(self, chunks: int) -> None:
        """Gather without computation."""
        self.gather.communicate(self.x, chunks)

    def _part(self, rows: Tensor, first: int) -> None:
        out = self.y[first : first + len(rows)]
        spanned(self.spans, "computation", self.multiply, rows, out, first)

    def error(self) -> float:
        """Compare with the product in float64."""
        which = checked(self.workload.m)
        x = torch.cat([self.values("x", one, *self.x.shape) for one in range(self.ranks)])[which]
        return worst_error(self.y[which], x.double() @ self.w.double())
