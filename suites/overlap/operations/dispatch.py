"""MoE dispatch: each token's row goes to the ranks of its experts, which multiply it.

x (M / ranks, K) per rank, w (experts / ranks, K, N); the result has a product per row received.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.common import checked, worst_error
from suites.overlap.operations.routes import ExpertRows, RoutedShare, products
from suites.overlap.subject import Subject


class Dispatch(RoutedShare):
    """The operation on this rank. `received[source]` are rows, `y[source]` their products, part by part."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        workload = self.workload
        self.x = self.values("x", self.rank, workload.m // self.ranks, workload.k)
        self.w = self.values("w", self.rank, self.local_experts, workload.k, workload.n)
        self.received = torch.empty(self.ranks, self._width(self.rank), workload.k)
        self.y: dict[int, list[Tensor]] = {}
        self._buffer, self._arrived = link.buffer(self.received), link.signals(self.ranks)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the rows for experts of peers."""
        rows = sum(len(self.to(peer)) for peer in self.peers())
        return float(rows * self.x.shape[1] * self.x.itemsize)

    def compute(self) -> None:
        """Sort all tokens' rows by expert and multiply all received rows, without communication."""
        self.y.clear()
        for peer in self.peers():
            self._sorted(peer, self.part(self.to(peer), 1))
        self._multiply_own()
        for source in self.peers():
            part = self.part(self.from_source(source), 1)
            self._multiply(source, part, self.received[source, part.rows])

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
            parts = self._parts_here(chunk, chunks)
            rows_of = torch.split(received, [part.end - part.first for part in parts])
            for source, (part, rows) in enumerate(zip(parts, rows_of, strict=True)):
                self._multiply(source, part, rows)

    def _parts_here(self, chunk: int, chunks: int) -> list[ExpertRows]:
        """Return a chunk of what each source has for this rank."""
        return [self.part(self.from_source(source), chunks, chunk, chunk + 1) for source in range(self.ranks)]

    def _exchange(self, chunk: int, chunks: int) -> tuple[Any, Tensor]:
        sent = [
            self._sorted(peer, self.part(self.to(peer), chunks, chunk, chunk + 1))
            for peer in range(self.ranks)
        ]
        counts = [part.end - part.first for part in self._parts_here(chunk, chunks)]
        received = torch.empty(sum(counts), self.x.shape[1])
        work = dist.all_to_all_single(
            received, torch.cat(sent), counts, [len(one) for one in sent], async_op=True
        )
        return work, received

    def _symmetric(self, chunks: int) -> None:
        """Multiply the own rows first, then all that have arrived of a peer."""
        self.y.clear()
        self._put(chunks)
        self._multiply_own()
        multiplied = dict.fromkeys(self.peers(), 0)
        for peer, chunk in self.arriving(chunks):
            if chunk < multiplied[peer]:
                continue
            arrived = self.link.wait(self._arrived[peer], chunk + 1)
            part = self.part(self.from_source(peer), chunks, chunk, arrived)
            self._multiply(peer, part, self.received[peer, part.rows])
            multiplied[peer] = arrived

    def _put(self, chunks: int) -> None:
        def put(peer: int, chunk: int) -> None:
            part = self.part(self.to(peer), chunks, chunk, chunk + 1)
            at_B = (self.rank * self._width(peer) + part.first) * self.x.shape[1] * self.x.itemsize
            rows = self._sorted(peer, part)
            self.link.put(peer, self._buffer, at_B, rows, self._arrived[self.rank], self.in_turn)

        self.put_chunks(chunks, put)

    def _width(self, rank: int) -> int:
        """Return how many rows a rank's buffer has per source."""
        return max(len(routes[rank]) for routes in self.routes)

    def _sorted(self, destination: int, part: ExpertRows) -> Tensor:
        return self.x[self.to(destination).tokens[part.rows]]

    def _multiply_own(self) -> None:
        part = self.part(self.to(self.rank), 1)
        self._multiply(self.rank, part, self._sorted(self.rank, part))

    def _multiply(self, source: int, part: ExpertRows, rows: Tensor) -> None:
        out = products(rows, self.w, self.from_source(source), part)
        self.y.setdefault(source, []).append(out)

    def error(self) -> float:
        """Compare with products in float64."""
        errors = []
        for source, parts in self.y.items():
            y, route = torch.cat(parts), self.from_source(source)
            if not len(route):  # no token of this source chose an expert of this rank
                continue
            which = checked(len(route))
            experts = torch.searchsorted(route.ends.long(), which, right=True)
            rows = self.values("x", source, *self.x.shape).double()[route.tokens[which]]
            expected = torch.stack(
                [row @ self.w[expert].double() for row, expert in zip(rows, experts.tolist(), strict=True)]
            )
            errors.append(worst_error(y[which], expected))
        return max(errors, default=0.0)
