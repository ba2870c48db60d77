"""Messages over the links of a switch or a full mesh, simulated from event to event in continuous time.

Messages that are under way at once share links max-min fair. Bytes, seconds; L links, S streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.instruments.network.leaf_spine.clos import FloatArray, IntArray
from harness.instruments.network.leaf_spine.flow_simulator import crossings, shares

ROUNDING = 1e-9
"""Relative tolerance of bytes and times: what ends within it ends at once."""


class Transfer(NamedTuple):
    """One message, which may begin at `ready_s`."""

    source: int
    target: int
    size_B: float
    ready_s: float = 0.0


Stream = Sequence[Transfer]
"""Messages that one engine carries one after the other."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links between ranks, each with the same rate per direction."""

    topology: str
    ranks: int
    rate_B_per_s: float

    @property
    def capacity_L(self) -> FloatArray:
        """Return the rate of each link: of ports out and in, or of directed pairs."""
        count = 2 * self.ranks if self.topology == "switch" else self.ranks**2
        return np.full(count, self.rate_B_per_s)

    def path(self, transfer: Transfer) -> tuple[int, ...]:
        """Return the links that a message crosses."""
        if self.topology == "switch":
            return transfer.source, self.ranks + transfer.target
        return (transfer.source * self.ranks + transfer.target,)


class Carried(NamedTuple):
    """The end of each message (in the order of each stream), and the bytes that crossed each link."""

    end_s: list[list[float]]
    bytes_L: FloatArray


class _Simulation:
    """The state of all streams between two events."""

    def __init__(self, streams: Sequence[Stream], links: Links, message_s: float) -> None:
        self.streams, self.links, self.message_s = streams, links, message_s
        self.capacity_L = links.capacity_L
        self.carried = Carried([[] for _ in streams], np.zeros(len(self.capacity_L)))
        self.now_s = 0.0
        self.begin_s_S, self.left_B_S = np.full(len(streams), np.inf), np.zeros(len(streams))
        for stream in range(len(streams)):
            self._next(stream)

    def _next(self, stream: int) -> None:
        """Prepare the next message of a stream; its bytes flow once it is ready and its overhead is over."""
        done = len(self.carried.end_s[stream])
        if done == len(self.streams[stream]):
            self.begin_s_S[stream] = np.inf
            return
        transfer = self.streams[stream][done]
        self.begin_s_S[stream] = max(self.now_s, transfer.ready_s) + self.message_s
        self.left_B_S[stream] = transfer.size_B

    def run(self) -> Carried:
        """Step from event to event until every message has ended."""
        while np.isfinite(self.begin_s_S).any():
            flowing_A = np.flatnonzero(self.begin_s_S <= self.now_s * (1 + ROUNDING))
            waiting_A = np.flatnonzero(np.isfinite(self.begin_s_S))
            waiting_A = np.setdiff1d(waiting_A, flowing_A)
            until_s = float(self.begin_s_S[waiting_A].min(initial=np.inf))
            if flowing_A.size:
                self._flow(flowing_A, until_s)
            else:
                self.now_s = until_s
        return self.carried

    def _flow(self, flowing_A: IntArray, until_s: float) -> None:
        """Let bytes flow until the first message ends or another begins."""
        current = [self.streams[one][len(self.carried.end_s[one])] for one in flowing_A]
        path_AJ = np.array([self.links.path(one) for one in current], dtype=np.int64)
        rate_A = shares(crossings(path_AJ), self.capacity_L)
        end_A = self.left_B_S[flowing_A] / rate_A
        step_s = min(float(end_A.min()), until_s - self.now_s)
        np.add.at(self.carried.bytes_L, path_AJ, (rate_A * step_s)[:, None])
        self.left_B_S[flowing_A] -= rate_A * step_s
        self.now_s += step_s
        for stream, transfer in zip(flowing_A, current, strict=True):
            if self.left_B_S[stream] <= ROUNDING * transfer.size_B:
                self.carried.end_s[stream].append(self.now_s)
                self._next(int(stream))


def carry(streams: Sequence[Stream], links: Links, message_s: float) -> Carried:
    """Return when each message has ended and what each link carried; raises ValueError for empty messages."""
    if any(one.size_B <= 0 or one.source == one.target for stream in streams for one in stream):
        raise ValueError("a message needs bytes, and a source that is not its target")
    return _Simulation(streams, links, message_s).run()
