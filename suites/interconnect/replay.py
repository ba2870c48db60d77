"""Predict an update's time by replaying its trace with collectives of a given duration. Pure.

One link carries one collective after the other, in the order in which they start; computation continues until
it waits for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

TraceEvents = Sequence[Sequence[Any]]


KINDS = ("all_reduce", "all_gather", "reduce_scatter")


class Collective(NamedTuple):
    """One kind of collective at one size."""

    name: str
    elements: int
    dtype: str


class Service(NamedTuple):
    """The seconds of a collective by itself, at a few link rates."""

    rates_B_per_s: tuple[float, ...]  # increasing
    taken_s: tuple[float, ...]

    def seconds(self, rate_B_per_s: float) -> float:
        """Return the seconds at any rate.

        Between two measured rates it is a line over logarithms. Below them bytes dominate, so the slowest
        time grows as the rate falls. Above them only latency counts.
        """
        slower = max(self.rates_B_per_s[0] / rate_B_per_s, 1.0)
        rates, taken_s = np.log(self.rates_B_per_s), np.log(self.taken_s)
        return slower * float(np.exp(np.interp(np.log(rate_B_per_s), rates, taken_s)))


def collectives(events: TraceEvents) -> list[Collective]:
    """Return the collectives of a trace, each kind once; raises ValueError for one outside of `KINDS`."""
    kinds = list(dict.fromkeys(Collective(*event[2:]) for event in events if event[0] == "begin"))
    for one in kinds:
        if one.name not in KINDS:
            raise ValueError(f"a collective of {one.elements} elements cannot be timed by itself")
    return kinds


def alone_s(events: TraceEvents, times: Sequence[Sequence[Sequence[float]]]) -> dict[Collective, list[float]]:
    """Return the seconds of each kind of collective where ranks slept instead of computing.

    `times[rank][number]` is its start and end, by one clock. It lasts from when all ranks have started it,
    and the one that ended before it has ended, until it has ended on all.
    """
    taken_s: dict[Collective, list[float]] = {one: [] for one in collectives(events)}
    last = [
        (max(over_s for _, over_s in ranks), max(begun_s for begun_s, _ in ranks))
        for ranks in zip(*times, strict=True)
    ]
    started = [Collective(*event[2:]) for event in events if event[0] == "begin"]
    free_s = 0.0
    for (over_s, begun_s), one in sorted(zip(last, started, strict=True)):
        taken_s[one].append(over_s - min(max(begun_s, free_s), over_s))
        free_s = over_s
    return taken_s


def computed_s(events: TraceEvents) -> float:
    """Return the seconds that the update computes, without a network."""
    return float(sum(event[1] for event in events if event[0] == "compute"))


def merged(ranks: Sequence[Sequence[TraceEvents]]) -> TraceEvents:
    """Merge the traces of several updates and ranks: the slowest rank's median of each stretch.

    Raises ValueError where ranks or updates differ in more than their computing times.
    """
    shape = [_shape(event) for event in ranks[0][0]]
    if any([_shape(event) for event in trace] != shape for rank in ranks for trace in rank):
        raise ValueError("updates differ in their collectives or in their order")
    events = []
    for place, event in enumerate(ranks[0][0]):
        if event[0] == "compute":
            slowest_s = max(statistics.median(trace[place][1] for trace in rank) for rank in ranks)
            event = ["compute", slowest_s]
        events.append(event)
    return events


def step_seconds(events: TraceEvents, service_s: Callable[[Collective], float]) -> float:
    """Return the update's seconds where each collective takes `service_s` by itself."""
    now_s = free_s = 0.0
    over_s: dict[int, float] = {}
    for event in events:
        if event[0] == "compute":
            now_s += event[1]
        elif event[0] == "begin":
            free_s = max(now_s, free_s) + service_s(Collective(*event[2:]))
            over_s[event[1]] = free_s
        else:
            now_s = max(now_s, over_s[event[1]])
    return max([now_s, *over_s.values()])


def service(samples: Mapping[float, Sequence[float]]) -> Service:
    """Return the service from seconds, several at each rate (B/s): their mean, never zero.

    Raises ValueError without a rate.
    """
    if not samples:
        raise ValueError("a collective is timed at one rate at least")
    rates = tuple(sorted(samples))
    return Service(rates, tuple(max(statistics.fmean(samples[rate]), LEAST_S) for rate in rates))


LEAST_S = 1e-7
"""Seconds of a collective that ended together with the one before."""


def _shape(event: Sequence[Any]) -> tuple[Any, ...]:
    return (event[0],) if event[0] == "compute" else tuple(event)
