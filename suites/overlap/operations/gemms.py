"""AllGather + GEMM, AllGather + MoE, and GEMM + ReduceScatter, as a rank runs and times them.

AllGather + GEMM: y (M, N) = all-gather(x (M / ranks, K)) @ w (K, N), each rank with a w of its own. GEMM +
ReduceScatter: y (M / ranks, N), this rank's rows of the sum over ranks of x (M, K) @ w (K, N).

AllGather + MoE: the experts' products for all ranks' tokens, with this rank's columns of every expert: x (M /
ranks, K) per rank, w (experts, K, N), y (M, top_k, N). All ranks know every token's experts, as in
Triton-distributed's test, whose baseline is the loop over experts with masks. Puts go by columns of x: a
chunk of rows would leave each expert few of them, and read all weights again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.collectives import (
    NOT_COMMUNICATED,
    AllGather,
    RankGroup,
    RankShare,
    ReduceScatter,
    checked,
    spanned,
    worst_error,
)
from suites.overlap.workload import Subject


class TimedAllGatherGemm(RankShare):
    """The operation on this rank. `gather.spans`: where the busy times of a run's lanes are recorded."""

    gathers_by: type[AllGather] = AllGather

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        m, k, n = self.workload.m, self.workload.k, self.workload.n
        rows = m // self.ranks
        self.x, self.w = self.values("x", self.rank, rows, k), self.values("w", self.rank, k, n)
        self.y = torch.empty(m, n)
        self.gather = self.gathers_by(subject, RankGroup(link), rows, k)
        self.sent_B, self.received = self.gather.sent_B, self.gather.gathered

    def run(self, chunks: int) -> None:
        """Compute y once."""
        self.gather.multiply(self.x, self._part, chunks)

    def compute(self) -> None:
        """Multiply without communication."""
        self.run(NOT_COMMUNICATED)

    def communicate(self, chunks: int) -> None:
        """Gather without computation."""
        self.gather.communicate(self.x, chunks)

    def multiply(self, rows: Tensor, out: Tensor, first: int) -> None:
        """Write the product of these gathered rows, the first of which is row `first`."""
        torch.mm(rows, self.w, out=out)

    def _part(self, rows: Tensor, first: int) -> None:
        out = self.y[first : first + len(rows)]
        spanned(self.gather.spans, "computation", self.multiply, rows, out, first)

    def error(self) -> float:
        """Compare with products in float64."""
        which = checked(self.workload.m)
        x = torch.cat([self.values("x", one, *self.x.shape) for one in range(self.ranks)])[which]
        return worst_error(self.y[which], self.expected(x.double(), which))

    def expected(self, x: Tensor, which: Tensor) -> Tensor:
        """Return the products in float64 of x, the rows of these numbers."""
        return x @ self.w.double()


class TimedGemmReduceScatter(RankShare):
    """The operation on this rank."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        m, k, n = self.workload.m, self.workload.k, self.workload.n
        self.rows = m // self.ranks
        self.x, self.w = self.values("x", self.rank, m, k), self.values("w", self.rank, k, n)
        self.y = torch.empty(self.rows, n)
        self.scatter = ReduceScatter(subject, RankGroup(link), self.rows, n)
        self.sent_B, self.received = self.scatter.sent_B, self.scatter.received

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
        expected = torch.zeros(len(which), self.workload.n, dtype=torch.float64)
        for one in range(self.ranks):
            x, w = self.values("x", one, *self.x.shape), self.values("w", one, *self.w.shape)
            expected += x[self.rank * self.rows + which].double() @ w.double()
        return worst_error(self.y[which], expected)


class ColumnGather(AllGather):
    """Gathers x (rows, columns) of every rank in chunks of columns, each (rows, columns / chunks)."""

    def put_columns(self, x: Tensor, chunks: int) -> None:
        """Put all chunks to all peers."""
        for peer, chunk in self.putting(chunks):
            columns = self.columns(chunks, chunk)
            at_B = (self.rank * x.shape[1] + columns.start) * len(x) * x.itemsize
            part, to = x[:, columns].contiguous(), self.group.members[peer]
            self.link.put(to, self._buffer, at_B, part, self._arrived[self.rank], self.in_turn)

    def arrived(self, peer: int, chunks: int, chunk: int) -> Tensor:
        """Wait for a chunk of a peer and return it."""
        self.link.wait(self._arrived[peer], chunk + 1)
        columns, rows = self.columns(chunks, chunk), self.rows
        of_peer = self.of_rank(self.gathered, peer).view(-1)
        return of_peer[columns.start * rows : columns.stop * rows].view(rows, -1)

    def columns(self, chunks: int, chunk: int) -> slice:
        """Return a chunk's columns."""
        columns = self.gathered.shape[1]
        return slice(columns * chunk // chunks, columns * (chunk + 1) // chunks)

    def communicate(self, x: Tensor, chunks: int) -> None:
        """Gather without computation."""
        if self.subject.algorithm != "symmetric":
            super().communicate(x, chunks)
            return
        self.put_columns(x, chunks)
        for peer, chunk in self.arriving(chunks):
            self.arrived(peer, chunks, chunk)


class AllGatherMoe(TimedAllGatherGemm):
    """The operation on this rank."""

    gathers_by = ColumnGather
    gather: ColumnGather

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        workload = self.workload
        self.w = self.values("w", self.rank, workload.experts, workload.k, workload.n)
        self.experts = self.chosen_experts()
        self.y = torch.empty(workload.m, workload.top_k, workload.n)

    def run(self, chunks: int) -> None:
        """Compute y once."""
        if self.subject.algorithm == "symmetric" and chunks != NOT_COMMUNICATED:
            self._by_columns(chunks)
        else:
            super().run(chunks)

    def _by_columns(self, chunks: int) -> None:
        """Multiply each chunk of columns of the own rows and of the first peer's together, as it arrives.

        So most weights are read once. Before the first chunk arrives there is time for the own rows with the
        last one's columns. Chunks of further peers are multiplied by themselves.
        """
        gather, rows = self.gather, self.gather.rows
        gather.put_columns(self.x, chunks)
        arriving = gather.arriving(chunks)
        first, last = arriving[0][0], gather.columns(chunks, chunks - 1)
        of = {peer: (peer,) if peer != first else (self.rank, first) for peer in self.peers()}
        sums = {peer: ExpertSums(self.experts, self.w, rows, ranks) for peer, ranks in of.items()}
        spanned(gather.spans, "computation", sums[first].add, last, {self.rank: self.x[:, last]})
        for peer, chunk in arriving:
            columns = gather.columns(chunks, chunk)
            parts = {peer: gather.arrived(peer, chunks, chunk)}
            if peer == first and chunk < chunks - 1:
                parts[self.rank] = self.x[:, columns]
            spanned(gather.spans, "computation", sums[peer].add, columns, parts)
        for one in sums.values():
            one.write(self.y)

    def multiply(self, rows: Tensor, out: Tensor, first: int) -> None:
        """Write the products of these rows with the experts that they chose."""
        experts = self.experts[first : first + len(rows)]
        by = expert_loop if self.subject.experts_by == "loop" else grouped
        by(rows, experts, self.w, out)

    def expected(self, x: Tensor, which: Tensor) -> Tensor:
        """Return the products in float64 of x, the rows of these numbers, with the experts chosen."""
        pairs = zip(x, self.experts[which].tolist(), strict=True)
        return torch.stack([row @ self.w[chosen].double() for row, chosen in pairs])


class ExpertSums:
    """Products of some ranks' tokens with their experts (M, top_k), summed over chunks of columns."""

    def __init__(self, experts: Tensor, w: Tensor, rows: int, ranks: Sequence[int]) -> None:
        self._w, self._rows, self._ranks = w, rows, ranks
        of_ranks = [experts[rank * rows : (rank + 1) * rows] for rank in ranks]
        order, ends = by_expert(torch.cat(of_ranks), len(w))
        top_k = experts.shape[1]
        self._tokens = order // top_k
        first = torch.tensor(ranks).repeat_interleave(rows * top_k) * rows * top_k
        within = torch.arange(rows * top_k).repeat(len(ranks))
        self._choices = (first + within)[order]  # of all tokens' choices, those of each row
        self._sums = w.new_zeros(len(order), w.shape[2])
        # An expert has the rows of one rank after those of another; where each of these begins:
        counts = torch.stack([torch.bincount(one.reshape(-1), minlength=len(w)) for one in of_ranks], dim=1)
        begins = counts.flatten().cumsum(0) - counts.flatten()
        self._begins = [*begins.tolist(), int(ends[-1])]

    def add(self, columns: slice, parts: Mapping[int, Tensor]) -> None:
        """Add the products of these columns of tokens, by rank (rows, columns): of all ranks, or of one."""
        x = self._w.new_empty(len(self._ranks) * self._rows, columns.stop - columns.start)
        for number, rank in enumerate(self._ranks):
            if rank in parts:
                x[number * self._rows : (number + 1) * self._rows] = parts[rank]
        rows, count = x[self._tokens], len(self._ranks)
        first = min(map(self._ranks.index, parts))
        for expert in range(len(self._w)):
            begin = expert * count + first
            low, high = self._begins[begin], self._begins[begin + len(parts)]
            if low < high:
                self._sums[low:high].addmm_(rows[low:high], self._w[expert, columns])

    def write(self, out: Tensor) -> None:
        """Write the sums into their places of all tokens' (M, top_k, N)."""
        out.view(-1, out.shape[-1])[self._choices] = self._sums


def expert_loop(rows: Tensor, experts: Tensor, w: Tensor, out: Tensor) -> None:
    """Multiply expert by expert, with a mask over all tokens: what a first version in PyTorch does."""
    repeated = rows.repeat_interleave(experts.shape[1], 0)
    flat, result = experts.reshape(-1), out.view(-1, out.shape[-1])
    for expert in range(len(w)):
        mask = flat == expert
        if mask.any():
            result[mask] = repeated[mask] @ w[expert]


def grouped(rows: Tensor, experts: Tensor, w: Tensor, out: Tensor) -> None:
    """Sort the tokens by expert, and multiply all groups by one call."""
    order, ends = by_expert(experts, len(w))
    products = F.grouped_mm(rows[order // experts.shape[1]], w, offs=ends)
    out.view(-1, out.shape[-1])[order] = products


def by_expert(experts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the order of all choices (tokens, top_k) by expert, and where each expert's end."""
    flat = experts.reshape(-1)
    return flat.argsort(stable=True), torch.bincount(flat, minlength=count).cumsum(0).to(torch.int32)
