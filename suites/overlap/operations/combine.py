"""MoE combine: experts' products go back to their tokens' ranks, which add each token's by its weights.

h (rows, K) per source of tokens, w (experts / ranks, K, N); y (M / ranks, N), a weighted sum over top_k.
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


class Combine(RoutedShare):
    """The operation on this rank, whose experts have rows of all ranks' tokens."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        workload = self.workload
        self.w = self.values("w", self.rank, self.local_experts, workload.k, workload.n)
        self.weights = self.values("weights", self.rank, self.tokens, workload.top_k).softmax(-1)
        self._h = [self._inputs_of(one)[self.from_source(one).tokens] for one in range(self.ranks)]
        self.received = torch.empty(self.ranks, self._width(self.rank), workload.n)
        self.y = torch.empty(self.tokens, workload.n)
        self._zeros = torch.zeros(max(map(len, self._h)), workload.n)
        self._buffer, self._arrived = link.buffer(self.received), link.signals(self.ranks)

    @property
    def sent_B(self) -> float:
        """Return the bytes of the products for peers' tokens."""
        rows = sum(len(self.from_source(peer)) for peer in self.peers())
        return float(rows * self.workload.n * self.y.itemsize)

    def compute(self) -> None:
        """Multiply all rows and add those of this rank's own tokens, without communication."""
        self.y.zero_()
        for peer in self.peers():
            self._product(peer, self.part(self.from_source(peer), 1))
        self._add_own(self._product_own())
        for peer in self.peers():
            part = self.part(self.to(peer), 1)
            self._add(peer, part, self.received[peer, part.rows])

    def communicate(self, chunks: int) -> None:
        """Move products without computing them."""
        parts = 1 if self.subject.algorithm == "in_sequence" else chunks

        def rows(source: int, chunk: int) -> Tensor:
            part = self.part(self.from_source(source), parts, chunk, chunk + 1)
            return self._zeros[: part.end - part.first]

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
            sent = [
                self._product(source, self.part(self.from_source(source), chunks, chunk, chunk + 1))
                for source in range(self.ranks)
            ]
            works.append(self._exchange(sent, chunk, chunks))
        for chunk, (work, received) in enumerate(works):
            work.wait()
            parts = self._parts_back(chunk, chunks)
            rows_of = torch.split(received, [part.end - part.first for part in parts])
            for rank, (part, rows) in enumerate(zip(parts, rows_of, strict=True)):
                self._add(rank, part, rows)

    def _parts_back(self, chunk: int, chunks: int) -> list[ExpertRows]:
        """Return a chunk of what each rank's experts send back."""
        return [self.part(self.to(rank), chunks, chunk, chunk + 1) for rank in range(self.ranks)]

    def _exchange(self, sent: list[Tensor], chunk: int, chunks: int) -> tuple[Any, Tensor]:
        counts = [part.end - part.first for part in self._parts_back(chunk, chunks)]
        received = torch.empty(sum(counts), self.workload.n)
        work = dist.all_to_all_single(
            received, torch.cat(sent), counts, [len(one) for one in sent], async_op=True
        )
        return work, received

    def _symmetric(self, chunks: int) -> None:
        """Multiply the peers' rows first, the own ones while those travel; add all that has arrived."""
        self.y.zero_()
        for peer, first, end in self.put_groups(chunks):
            route = self.from_source(peer)
            group = self.part(route, chunks, first, end)
            rows = self._product(peer, group)
            for chunk in range(first, end):
                part = self.part(route, chunks, chunk, chunk + 1)
                self._put(peer, chunk, chunks, rows[part.first - group.first : part.end - group.first])
        self._add_own(self._product_own())
        added = dict.fromkeys(self.peers(), 0)
        for peer, chunk in self.arriving(chunks):
            if chunk < added[peer]:
                continue
            arrived = self.link.wait(self._arrived[peer], chunk + 1)
            part = self.part(self.to(peer), chunks, chunk, arrived)
            self._add(peer, part, self.received[peer, part.rows])
            added[peer] = arrived

    def _put(self, peer: int, chunk: int, chunks: int, rows: Tensor) -> None:
        part = self.part(self.from_source(peer), chunks, chunk, chunk + 1)
        first = self.rank * self._width(peer) + part.first
        at_B = first * rows.shape[1] * rows.itemsize
        self.link.put(peer, self._buffer, at_B, rows, self._arrived[self.rank], self.in_turn)

    def _width(self, rank: int) -> int:
        """Return how many rows a rank's buffer has per peer."""
        return max(map(len, self.routes[rank]))

    def _product(self, source: int, part: ExpertRows) -> Tensor:
        return products(self._h[source][part.rows], self.w, self.from_source(source), part)

    def _product_own(self) -> Tensor:
        return self._product(self.rank, self.part(self.from_source(self.rank), 1))

    def _inputs_of(self, source: int) -> Tensor:
        return self.values("h", source, self.tokens, self.workload.k)

    def _add_own(self, rows: Tensor) -> None:
        self._add(self.rank, self.part(self.to(self.rank), 1), rows)

    def _add(self, rank: int, part: ExpertRows, rows: Tensor) -> None:
        """Add products of a rank's experts to the own tokens, by their weights."""
        tokens, choices, _ = self.to(rank)
        tokens, choices = tokens[part.rows], choices[part.rows]
        self.y.index_add_(0, tokens, rows * self.weights[tokens, choices][:, None])

    def error(self) -> float:
        """Compare with the weighted sum in float64."""
        which = checked(self.tokens)
        h, local = self._inputs_of(self.rank).double(), self.local_experts
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
