"""MoE dispatch and combine, as a rank runs and times them: rows go to the ranks of their experts, and back.

The routes of tokens are the same on every rank. Dispatch: x (M / ranks, K) per rank, w (experts / ranks, K,
N); the result has a product per row received. Combine: h (rows, K) per source of tokens, the same w; y (M /
ranks, N), a weighted sum over top_k on the tokens' own ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.collectives import RankShare, checked, worst_error
from suites.overlap.workload import Subject


class ExpertRoute(NamedTuple):
    """The rows of one rank's tokens that go to one rank, or to some of its experts, sorted by expert.

    `tokens`: of the source rank (rows,). `choices`: which of a token's top_k (rows,). `ends`: for each of
    these experts, the end of its rows.
    """

    tokens: Tensor
    choices: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class ExpertRows(NamedTuple):
    """Some consecutive experts of a rank, and their rows of a route to it: from `first` to `end`."""

    experts: slice
    first: int
    end: int

    @property
    def rows(self) -> slice:
        """Return the rows."""
        return slice(self.first, self.end)


class RoutedShare(RankShare):
    """A rank's share of an operation that moves rows between tokens' ranks and their experts' ranks."""

    received: Tensor

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        self.link = link
        self.tokens = self.workload.m // self.ranks
        self.local_experts = self.workload.experts // self.ranks
        experts = self.chosen()
        self.routes = [
            [
                _route(experts[source], destination * self.local_experts, self.local_experts)
                for destination in range(self.ranks)
            ]
            for source in range(self.ranks)
        ]  # of each source rank and destination

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

    def part(self, route: ExpertRoute, chunks: int, first: int = 0, end: int | None = None) -> ExpertRows:
        """Return chunks `first` to `end` of a route, all by default.

        A chunk is the rows of consecutive experts: each expert multiplies its rows of a source at once.
        """
        low, high = (self.local_experts * one // chunks for one in (first, chunks if end is None else end))
        starts = [0, *route.ends.tolist()]
        return ExpertRows(slice(low, high), starts[low], starts[high])

    def from_source(self, source: int) -> ExpertRoute:
        """Return the route from a source to this rank's experts."""
        return self.routes[source][self.rank]

    def to(self, destination: int) -> ExpertRoute:
        """Return the route of this rank's tokens to a destination's experts."""
        return self.routes[self.rank][destination]

    def chosen(self) -> Tensor:
        """Return the experts of every rank's tokens (ranks, tokens, top_k)."""
        scores = self.values("experts", 0, self.workload.m, self.workload.experts)
        return scores.topk(self.workload.top_k).indices.view(self.ranks, self.tokens, self.workload.top_k)


def _route(chosen: Tensor, first: int, local: int) -> ExpertRoute:
    """Return the rows for experts `first` to `first + local` of tokens that chose (tokens, top_k)."""
    here = chosen - first
    tokens, choices = torch.where((here >= 0) & (here < local))
    experts = here[tokens, choices]
    order = experts.argsort(stable=True)
    ends = torch.bincount(experts, minlength=local).cumsum(0).to(torch.int32)
    return ExpertRoute(tokens[order], choices[order], ends)


def products(rows: Tensor, w: Tensor, route: ExpertRoute, part: ExpertRows) -> Tensor:
    """Return the products of a part of a route's rows with their experts; `rows` are those of the part."""
    return F.grouped_mm(rows, w[part.experts], offs=route.ends[part.experts] - part.first)


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
