"""MoE combine: experts' products go back to their tokens' ranks, which add each token's by its weights.

h (rows, K) per source of tokens, w (experts / ranks, K, N); y (M / ranks, N), a weighted sum over top_k.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.common import checked, worst_error
from suites.overlap.operations.routes import ExpertRoute, RoutedShare, products
from suites.overlap.subject import Subject


class Combine(RoutedShare):
    """The operation on this rank, whose experts have rows of all ranks' tokens."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        workload = self.workload
        self.w = self.values("w", self.rank, workload.experts // self.ranks, workload.k, workload.n)
        self.weights = self.values("weights", self.rank, self.tokens, workload.top_k).softmax(-1)
        self._inputs: dict[tuple[int, int], Tensor] = {}
        most = max(len(one) for source in self.routed(1)[self.rank] for one in source)
        self.received = torch.empty(self.ranks, most, workload.n)
        self.y = torch.empty(self.tokens, workload.n)
        self._zeros = torch.zeros(max(self._width(one) for one in range(self.ranks)), workload.n)
        self._buffer, self._arrived = link.buffer(self.received), link.signals(self.ranks)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the products for peers' tokens."""
        rows = sum(len(self.route(peer, 0, 1)) for peer in self.peers())
        return float(rows * self.workload.n * self.y.itemsize)

    def compute(self) -> None:
        """Multiply all rows without communication."""
        for source in range(self.ranks):
            self._product(source, 0, 1)

    def communicate(self, chunks: int) -> None:
        """Move products without computing them."""
        parts = 1 if self.subject.algorithm == "in_sequence" else chunks

        def rows(source: int, chunk: int) -> Tensor:
            return self._zeros[: len(self.route(source, chunk, parts))]

        if self.subject.algorithm == "symmetric":
            self.put_chunks(chunks, lambda peer, chunk: self._put(peer, chunk, chunks, rows(peer, chunk)))
            for peer in self.peers():
                self.link.wait(self._arrived[peer], chunks)
            return
        for work, _ in [
            self._exchange([rows(source, chunk) for source in range(self.ranks)], chunk, parts)
            for chunk in range(parts)
        ]:
            work.wait()

    def _decomposed(self, chunks: int) -> None:
        self.y.zero_()
        works = []
        for chunk in range(chunks):
            sent = [self._product(source, chunk, chunks) for source in range(self.ranks)]
            works.append(self._exchange(sent, chunk, chunks))
        for chunk, (work, received) in enumerate(works):
            work.wait()
            mine = [one[chunk] for one in self.routed(chunks)[self.rank]]
            for route, rows in zip(mine, torch.split(received, [len(one) for one in mine]), strict=True):
                self._add(route, rows)

    def _exchange(self, sent: list[Tensor], chunk: int, chunks: int) -> tuple[dist.Work, Tensor]:
        counts = [len(one[chunk]) for one in self.routed(chunks)[self.rank]]
        received = torch.empty(sum(counts), self.workload.n)
        work = dist.all_to_all_single(
            received, torch.cat(sent), counts, [len(one) for one in sent], async_op=True
        )
        assert work is not None
        return work, received

    def _symmetric(self, chunks: int) -> None:
        self.y.zero_()
        self.put_chunks(
            chunks, lambda peer, chunk: self._put(peer, chunk, chunks, self._product(peer, chunk, chunks))
        )
        for chunk, route in enumerate(self.routed(chunks)[self.rank][self.rank]):
            self._add(route, self._product(self.rank, chunk, chunks))
        firsts = dict.fromkeys(self.peers(), 0)
        for peer, chunk in self.arriving(chunks):
            first, route = firsts[peer], self.routed(chunks)[self.rank][peer][chunk]
            self.link.wait(self._arrived[peer], chunk + 1)
            self._add(route, self.received[peer, first : first + len(route)])
            firsts[peer] += len(route)

    def _put(self, peer: int, chunk: int, chunks: int, rows: Tensor) -> None:
        before = sum(len(self.route(peer, one, chunks)) for one in range(chunk))
        first = self.rank * self._width(peer) + before
        at_B = first * rows.shape[1] * rows.itemsize
        self.link.put(peer, self._buffer, at_B, rows, self._arrived[self.rank], self.in_turn)

    def _width(self, peer: int) -> int:
        """Return how many rows the peer's buffer has per rank."""
        return max(len(one) for source in self.routed(1)[peer] for one in source)

    def _product(self, source: int, chunk: int, chunks: int) -> Tensor:
        before = sum(len(self.route(source, one, chunks)) for one in range(chunk))
        route = self.route(source, chunk, chunks)
        return products(self._h(source, chunks)[before : before + len(route)], self.w, route.ends)

    def _h(self, source: int, chunks: int) -> Tensor:
        """Return the rows for that rank's tokens, chunk by chunk."""
        key = source, chunks
        if key not in self._inputs:
            tokens = torch.cat([one.tokens for one in self.routed(chunks)[source][self.rank]])
            self._inputs[key] = self._inputs_of(source)[tokens]
        return self._inputs[key]

    def _inputs_of(self, source: int) -> Tensor:
        return self.values("h", source, self.tokens, self.workload.k)

    def _add(self, route: ExpertRoute, rows: Tensor) -> None:
        self.y.index_add_(0, route.tokens, rows * self.weights[route.tokens, route.choices][:, None])

    def error(self) -> float:
        """Compare with the weighted sum in float64."""
        which = checked(self.tokens)
        h, local = self._inputs_of(self.rank).double(), self.workload.experts // self.ranks
        chosen = self.chosen()[self.rank]
        w = [self.values("w", one, *self.w.shape).double() for one in range(self.ranks)]
        expected = torch.stack(
            [
                sum(
                    (
                        self.weights[token, choice].double() * (h[token] @ w[expert // local][expert % local])
                        for choice, expert in enumerate(chosen[token].tolist())
                    ),
                    torch.zeros(self.workload.n, dtype=torch.float64),
                )
                for token in which.tolist()
            ]
        )
        return worst_error(self.y[which], expected)
