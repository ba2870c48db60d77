"""AllGather + GEMM and GEMM + ReduceScatter, as a rank runs and times them.

AllGather + GEMM: y (M, N) = all-gather(x (M / ranks, K)) @ w (K, N), each rank with a w of its own. GEMM +
ReduceScatter: y (M / ranks, N), this rank's rows of the sum over ranks of x (M, K) @ w (K, N).
"""

from __future__ import annotations

import torch
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.collectives import NOT_COMMUNICATED, AllGather, RankGroup, ReduceScatter
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


class TimedGemmReduceScatter(RankShare):
    """The operation on this rank."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        m, k, n = self.workload.m, self.workload.k, self.workload.n
        self.rows = m // self.ranks
        self.x, self.w = self.values("x", self.rank, m, k), self.values("w", self.rank, k, n)
        self.y = torch.empty(self.rows, n)
        self.scatter = ReduceScatter(subject, RankGroup(link), self.rows, n)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the parts of the peers' rows."""
        return self.scatter.sent_B

    def forget(self) -> None:
        """Make what the last run received invalid."""
        self.scatter.received.fill_(torch.nan)

    def run(self, chunks: int) -> None:
        """Compute y once."""
        self.scatter.multiply(self._product, self.y, chunks)

    def compute(self) -> None:
        """Multiply without communication."""
        self._product(0, self.scatter.partial)

    def communicate(self, chunks: int) -> None:
        """Reduce and scatter without computation."""
        self.scatter.communicate(self.y, chunks)

    def _product(self, first: int, out: Tensor) -> None:
        torch.mm(self.x[first : first + len(out)], self.w, out=out)

    def error(self) -> float:
        """Compare with the sum of products in float64."""
        which = checked(self.rows)
        first, k, n = self.rank * self.rows, self.workload.k, self.workload.n
        expected = torch.zeros(len(which), n, dtype=torch.float64)
        for one in range(self.ranks):
            x, w = self.values("x", one, self.workload.m, k), self.values("w", one, k, n)
            expected += x[first + which].double() @ w.double()
        return worst_error(self.y[which], expected)
