"""MoE dispatch: each token's row goes to the ranks of its experts, which multiply it.

x (M / ranks, K) per rank, w (experts / ranks, K, N); the result has a product per row received.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.common import checked, worst_error
from suites.overlap.operations.routes import RoutedShare, products
from suites.overlap.subject import Subject


class Dispatch(RoutedShare):
    """The operation on this rank. `rows[source][chunk]` are received rows, `y` the products of the same."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        workload = self.workload
        self.x = self.values("x", self.rank, workload.m // self.ranks, workload.k)
        self.w = self.values("w", self.rank, workload.experts // self.ranks, workload.k, workload.n)
        most = max(len(one) for source in self.routed(1) for one in source[self.rank])
        self.received = torch.empty(self.ranks, most, workload.k)
        self.y: dict[int, list[Tensor]] = {}
        self._buffer, self._arrived = link.buffer(self.received), link.signals(self.ranks)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the rows for experts of peers."""
        rows = sum(len(self.routed(1)[self.rank][peer][0]) for peer in self.peers())
        return float(rows * self.x.shape[1] * self.x.itemsize)

    def compute(self) -> None:
        """Multiply all received rows without communication."""
        self.y.clear()
        for source in range(self.ranks):
            self._multiply(source, 0, 1, self.received[source, : len(self.route(source, 0, 1))])

    def communicate(self, chunks: int) -> None:
        """Move the rows without computation."""
        if self.subject.algorithm == "symmetric":
            self._put(chunks)
            for peer in self.peers():
                self.link.wait(self._arrived[peer], chunks)
        else:
            parts = chunks if self.subject.algorithm == "decomposed" else 1
            for work, _ in [self._exchange(chunk, parts) for chunk in range(parts)]:
                work.wait()

    def _decomposed(self, chunks: int) -> None:
        self.y.clear()
        works = [self._exchange(chunk, chunks) for chunk in range(chunks)]
        for chunk, (work, received) in enumerate(works):
            work.wait()
            counts = [len(self.route(source, chunk, chunks)) for source in range(self.ranks)]
            for source, rows in enumerate(torch.split(received, counts)):
                self._multiply(source, chunk, chunks, rows)

    def _exchange(self, chunk: int, chunks: int) -> tuple[dist.Work, Tensor]:
        mine = [one[chunk] for one in self.routed(chunks)[self.rank]]
        sent = torch.cat([self.x[route.tokens] for route in mine])
        counts = [len(self.route(source, chunk, chunks)) for source in range(self.ranks)]
        received = torch.empty(sum(counts), self.x.shape[1])
        work = dist.all_to_all_single(received, sent, counts, [len(one) for one in mine], async_op=True)
        assert work is not None
        return work, received

    def _symmetric(self, chunks: int) -> None:
        self.y.clear()
        self._put(chunks)
        for chunk, route in enumerate(self.routed(chunks)[self.rank][self.rank]):
            self._multiply(self.rank, chunk, chunks, self.x[route.tokens])
        firsts = dict.fromkeys(self.peers(), 0)
        for peer, chunk in self.arriving(chunks):
            first, route = firsts[peer], self.route(peer, chunk, chunks)
            self.link.wait(self._arrived[peer], chunk + 1)
            self._multiply(peer, chunk, chunks, self.received[peer, first : first + len(route)])
            firsts[peer] += len(route)

    def _put(self, chunks: int) -> None:
        def put(peer: int, chunk: int) -> None:
            mine = self.routed(chunks)[self.rank][peer]
            width = max(len(one) for source in self.routed(1) for one in source[peer])  # of the peer's buffer
            first = self.rank * width + sum(map(len, mine[:chunk]))
            rows = self.x[mine[chunk].tokens]
            at_B = first * self.x.shape[1] * self.x.itemsize
            self.link.put(peer, self._buffer, at_B, rows, self._arrived[self.rank], self.in_turn)

        self.put_chunks(chunks, put)

    def _multiply(self, source: int, chunk: int, chunks: int, rows: Tensor) -> None:
        out = products(rows, self.w, self.route(source, chunk, chunks).ends)
        self.y.setdefault(source, []).append(out)

    def error(self) -> float:
        """Compare with products in float64."""
        errors = []
        for source, parts in self.y.items():
            x = self.values("x", source, *self.x.shape).double()
            for part, route in zip(parts, self.routed(len(parts))[source][self.rank], strict=True):
                if not len(part):  # no token of this chunk chose an expert of this rank
                    continue
                which = checked(len(part))
                experts = torch.searchsorted(route.ends.long(), which, right=True)
                rows = x[route.tokens[which]]
                expected = torch.stack(
                    [
                        row @ self.w[expert].double()
                        for row, expert in zip(rows, experts.tolist(), strict=True)
                    ]
                )
                errors.append(worst_error(part[which], expected))
        return max(errors, default=0.0)
