"""MoE dispatch and combine, as a rank runs and times them: rows go to the ranks of their experts, and back.

Dispatch: x (M / ranks, K) per rank, w (experts / ranks, K, N); a product per row received. Combine: h (rows,
K) per source of tokens, the same w; y (M / ranks, N), a weighted sum over top_k on the tokens' own ranks.
"""

from __future__ import annotations

from collections.abc import Callable
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

    `tokens` and `choices` (rows,): of the source rank, and which of its top_k. `ends`: of each expert's rows.
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
    """A rank's share of an operation that moves rows between tokens' ranks and their experts' ranks.

    `routes[source][destination]`: the rows that a rank sends to another. `outgoing` returns the rows of a
    part of a route, and `take` uses those that came.
    """

    columns: int  # of what is sent

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        self.link = link
        workload = self.workload
        self.tokens = workload.m // self.ranks
        local = self.local_experts = workload.experts // self.ranks
        self.w = self.values("w", self.rank, local, workload.k, workload.n)
        self.chosen = self.chosen_experts().view(self.ranks, self.tokens, workload.top_k)
        firsts = [rank * self.local_experts for rank in range(self.ranks)]
        self.dispatched = [
            [_route(one, first, self.local_experts) for first in firsts] for one in self.chosen
        ]
        self.routes = self.routed()
        self.received = torch.empty(self.ranks, self._width(self.rank), self.columns)
        self._buffer, self._arrived = link.buffer(self.received), link.signals(self.ranks)
        rows = sum(len(self.routes[self.rank][peer]) for peer in self.peers())
        self.sent_B = float(rows * self.columns * self.received.itemsize)

    def routed(self) -> list[list[ExpertRoute]]:
        """Return `routes`."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget the last result."""
        raise NotImplementedError

    def outgoing(self, peer: int, part: ExpertRows) -> Tensor:
        """Return the rows of a part of the route to a rank, computed where the operation computes them."""
        raise NotImplementedError

    def blank(self, peer: int, part: ExpertRows) -> Tensor:
        """Return as many rows for communication alone."""
        return self.outgoing(peer, part)

    def take(self, peer: int, part: ExpertRows, rows: Tensor) -> None:
        """Use the rows of a part of the route from a rank."""
        raise NotImplementedError

    def run(self, chunks: int) -> None:
        """Do the operation once, by the subject's algorithm."""
        self.clear()
        if self.subject.algorithm == "symmetric":
            self.put_all(chunks)
            self._take_own()
            for peer, first, end in self.arrivals(self.link, self._arrived, chunks):
                self._take_received(peer, self.part(self._from(peer), chunks, first, end))
            return
        if self.subject.algorithm == "in_sequence":
            chunks = 1
        works = [self._exchange(chunk, chunks, self.outgoing) for chunk in range(chunks)]
        for chunk, (work, received) in enumerate(works):
            work.wait()
            parts = [self.part(self._from(peer), chunks, chunk, chunk + 1) for peer in range(self.ranks)]
            rows_of = torch.split(received, [part.end - part.first for part in parts])
            for peer, (part, rows) in enumerate(zip(parts, rows_of, strict=True)):
                self.take(peer, part, rows)

    def compute(self) -> None:
        """Make all outgoing rows and use all received ones, without communication."""
        self.clear()
        for peer in self.peers():
            self.outgoing(peer, self.part(self._to(peer), 1))
        self._take_own()
        for peer in self.peers():
            self._take_received(peer, self.part(self._from(peer), 1))

    def communicate(self, chunks: int) -> None:
        """Move rows without computation."""
        if self.subject.algorithm == "symmetric":
            for peer, chunk in self.putting(chunks):
                part = self.part(self._to(peer), chunks, chunk, chunk + 1)
                self._put(peer, part, self.blank(peer, part))
            for peer in self.peers():
                self.link.wait(self._arrived[peer], chunks)
        else:
            parts = 1 if self.subject.algorithm == "in_sequence" else chunks
            for work, _ in [self._exchange(chunk, parts, self.blank) for chunk in range(parts)]:
                work.wait()

    def put_all(self, chunks: int) -> None:
        """Make all outgoing rows and put them."""
        for peer, chunk in self.putting(chunks):
            part = self.part(self._to(peer), chunks, chunk, chunk + 1)
            self._put(peer, part, self.outgoing(peer, part))

    def part(self, route: ExpertRoute, chunks: int, first: int = 0, end: int | None = None) -> ExpertRows:
        """Return chunks `first` to `end` of a route, all by default: the rows of consecutive experts."""
        low, high = (self.local_experts * one // chunks for one in (first, chunks if end is None else end))
        starts = [0, *route.ends.tolist()]
        return ExpertRows(slice(low, high), starts[low], starts[high])

    def _to(self, peer: int) -> ExpertRoute:
        return self.routes[self.rank][peer]

    def _from(self, peer: int) -> ExpertRoute:
        return self.routes[peer][self.rank]

    def _width(self, rank: int) -> int:
        """Return how many rows a rank's buffer has per source."""
        return max(len(routes[rank]) for routes in self.routes)

    def _take_own(self) -> None:
        part = self.part(self._to(self.rank), 1)
        self.take(self.rank, part, self.outgoing(self.rank, part))

    def _take_received(self, peer: int, part: ExpertRows) -> None:
        self.take(peer, part, self.received[peer, part.rows])

    def _put(self, peer: int, part: ExpertRows, rows: Tensor) -> None:
        at_B = (self.rank * self._width(peer) + part.first) * self.columns * rows.itemsize
        self.link.put(peer, self._buffer, at_B, rows, self._arrived[self.rank], self.in_turn)

    def _exchange(
        self, chunk: int, chunks: int, rows: Callable[[int, ExpertRows], Tensor]
    ) -> tuple[Any, Tensor]:
        """Begin to send a chunk's rows to all ranks; return what to wait for, and what will be received."""
        sent, counts = [], []
        for peer in range(self.ranks):
            sent.append(rows(peer, self.part(self._to(peer), chunks, chunk, chunk + 1)))
            part = self.part(self._from(peer), chunks, chunk, chunk + 1)
            counts.append(part.end - part.first)
        received = torch.empty(sum(counts), self.columns)
        sizes = [len(one) for one in sent]
        work = dist.all_to_all_single(received, torch.cat(sent), counts, sizes, async_op=True)
        return work, received


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
        self.columns = subject.workload.k
        super().__init__(subject, link)
        self.x = self.values("x", self.rank, self.tokens, self.columns)
        self.y: dict[int, list[Tensor]] = {}

    def routed(self) -> list[list[ExpertRoute]]:
        """Return the routes from tokens to experts."""
        return self.dispatched

    def clear(self) -> None:
        """Forget the last products."""
        self.y.clear()

    def outgoing(self, peer: int, part: ExpertRows) -> Tensor:
        """Return the tokens' rows, sorted by expert."""
        return self.x[self._to(peer).tokens[part.rows]]

    def take(self, peer: int, part: ExpertRows, rows: Tensor) -> None:
        """Multiply rows that came from a rank."""
        self.y.setdefault(peer, []).append(products(rows, self.w, self._from(peer), part))

    def error(self) -> float:
        """Compare with products in float64."""
        errors = []
        for source, parts in self.y.items():
            y, route = torch.cat(parts), self._from(source)
            if not len(route):  # no token of this source chose an expert of this rank
                continue
            which = checked(len(route))
            experts = torch.searchsorted(route.ends.long(), which, right=True)
            rows = self.values("x", source, *self.x.shape).double()[route.tokens[which]]
            pairs = zip(rows, experts.tolist(), strict=True)
            expected = [row @ self.w[expert].double() for row, expert in pairs]
            errors.append(worst_error(y[which], torch.stack(expected)))
        return max(errors, default=0.0)


class Combine(RoutedShare):
    """The operation on this rank, whose experts have rows of all ranks' tokens."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        self.columns = subject.workload.n
        super().__init__(subject, link)
        self.weights = self.values("weights", self.rank, self.tokens, self.workload.top_k).softmax(-1)
        self._h = [self._inputs_of(one)[self._to(one).tokens] for one in range(self.ranks)]
        self.y = torch.empty(self.tokens, self.columns)
        self._zeros = torch.zeros(max(map(len, self._h)), self.columns)

    def routed(self) -> list[list[ExpertRoute]]:
        """Return the routes from experts back to tokens."""
        return [list(routes) for routes in zip(*self.dispatched, strict=True)]

    def clear(self) -> None:
        """Begin the sums."""
        self.y.zero_()

    def outgoing(self, peer: int, part: ExpertRows) -> Tensor:
        """Return the experts' products of rows of a rank's tokens."""
        return products(self._h[peer][part.rows], self.w, self._to(peer), part)

    def blank(self, peer: int, part: ExpertRows) -> Tensor:
        """Return as many rows of zeros."""
        return self._zeros[: part.end - part.first]

    def put_all(self, chunks: int) -> None:
        """Multiply groups of chunks, and put each chunk."""
        for peer, first, end in self.put_groups(chunks):
            group = self.part(self._to(peer), chunks, first, end)
            rows = self.outgoing(peer, group)
            for chunk in range(first, end):
                part = self.part(self._to(peer), chunks, chunk, chunk + 1)
                self._put(peer, part, rows[part.first - group.first : part.end - group.first])

    def take(self, peer: int, part: ExpertRows, rows: Tensor) -> None:
        """Add products of a rank's experts to the own tokens, by their weights."""
        tokens, choices, _ = self._from(peer)
        tokens, choices = tokens[part.rows], choices[part.rows]
        self.y.index_add_(0, tokens, rows * self.weights[tokens, choices][:, None])

    def _inputs_of(self, source: int) -> Tensor:
        return self.values("h", source, self.tokens, self.workload.k)

    def error(self) -> float:
        """Compare with the weighted sum in float64."""
        which, h = checked(self.tokens), self._inputs_of(self.rank).double()
        w = torch.cat([self.values("w", one, *self.w.shape) for one in range(self.ranks)]).double()
        expected = [
            torch.einsum("c,k,ckn->n", self.weights[one].double(), h[one], w[self.chosen[self.rank, one]])
            for one in which.tolist()
        ]
        return worst_error(self.y[which], torch.stack(expected))
