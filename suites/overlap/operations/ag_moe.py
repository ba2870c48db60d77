"""AllGather + MoE: the experts' products for all ranks' tokens, with this rank's columns of every expert.

x (M / ranks, K) per rank, w (experts, K, N), y (M, top_k, N). Every token's experts are known to all ranks,
as in Triton-distributed's test, whose PyTorch baseline is the loop over experts with masks.

Puts go by columns of x. A chunk of rows would leave each expert few of them, and read all weights again; a
chunk of columns needs its own rows of the weights alone, and adds to the products.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.ag_gemm import TimedAllGatherGemm
from suites.overlap.operations.collectives import NOT_COMMUNICATED, AllGather
from suites.overlap.operations.common import checked, spanned, worst_error
from suites.overlap.subject import Subject


class ColumnGather(AllGather):
    """Gathers x (rows, columns) of every rank in chunks of columns, each (rows, columns / chunks)."""

    def put_columns(self, x: Tensor, chunks: int) -> None:
        """Put all chunks to all peers."""

        def put(peer: int, chunk: int) -> None:
            columns = self.columns(chunks, chunk)
            at_B = (self.rank * x.shape[1] + columns.start) * len(x) * x.itemsize
            part, to = x[:, columns].contiguous(), self.group.members[peer]
            self.link.put(to, self._buffer, at_B, part, self._arrived[self.rank], self.in_turn)

        self.put_chunks(chunks, put)

    def arrived(self, peer: int, chunks: int, chunk: int) -> Tensor:
        """Wait for a chunk of a peer and return it."""
        self.link.wait(self._arrived[peer], chunk + 1)
        columns, rows = self.columns(chunks, chunk), self.rows
        of_peer = self.gathered[peer * rows : (peer + 1) * rows].view(-1)
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
        self.experts = chosen_experts(self, workload.m)
        self.y = torch.empty(workload.m, workload.top_k, workload.n)

    def run(self, chunks: int) -> None:
        """Compute y once."""
        if self.subject.algorithm == "symmetric" and chunks != NOT_COMMUNICATED:
            self._by_columns(chunks)
        else:
            super().run(chunks)

    def _by_columns(self, chunks: int) -> None:
        """Multiply the own rows first, then each chunk of columns that arrives."""
        rows = self.gather.rows
        self.gather.put_columns(self.x, chunks)
        self._part(self.x, self.rank * rows)
        sums = {
            peer: ExpertSums(self.experts[peer * rows : (peer + 1) * rows], self.w) for peer in self.peers()
        }
        for peer, chunk in self.gather.arriving(chunks):
            part = self.gather.arrived(peer, chunks, chunk)
            spanned(self.spans, "computation", sums[peer].add, part, self.gather.columns(chunks, chunk))
        for peer, one in sums.items():
            one.write(self.y[peer * rows : (peer + 1) * rows])

    def multiply(self, rows: Tensor, out: Tensor, first: int) -> None:
        """Write the products of these rows with the experts that they chose."""
        experts = self.experts[first : first + len(rows)]
        by = expert_loop if self.subject.experts_by == "loop" else grouped
        by(rows, experts, self.w, out)

    def error(self) -> float:
        """Compare with products in float64."""
        which = checked(self.workload.m)
        x = torch.cat([self.values("x", one, *self.x.shape) for one in range(self.ranks)])[which].double()
        expected = torch.stack(
            [
                torch.stack([row @ self.w[expert].double() for expert in chosen])
                for row, chosen in zip(x, self.experts[which].tolist(), strict=True)
            ]
        )
        return worst_error(self.y[which], expected)


def chosen_experts(part: TimedAllGatherGemm, tokens: int) -> Tensor:
    """Return each token's experts (tokens, top_k), all different, the same on every rank."""
    scores = part.values("experts", 0, tokens, part.workload.experts)
    return scores.topk(part.workload.top_k).indices


class ExpertSums:
    """Products of tokens with the experts that they chose (tokens, top_k), summed over chunks of columns."""

    def __init__(self, experts: Tensor, w: Tensor) -> None:
        self._w, self._top_k = w, experts.shape[1]
        self._order, ends = by_expert(experts, len(w))
        self._bounds = list(itertools.pairwise([0, *ends.tolist()]))
        self._sums = w.new_zeros(len(self._order), w.shape[2])

    def add(self, x: Tensor, columns: slice) -> None:
        """Add the products of these columns of the tokens (tokens, columns)."""
        rows = x[self._order // self._top_k]
        for expert, (low, high) in enumerate(self._bounds):
            self._sums[low:high].addmm_(rows[low:high], self._w[expert, columns])

    def write(self, out: Tensor) -> None:
        """Write the sums (tokens, top_k, N)."""
        out.view(len(self._order), -1)[self._order] = self._sums


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
