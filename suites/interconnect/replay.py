"""Steps through a traced update with collectives of a given length: a prediction of the update's time. Pure.

One link that carries one collective after the other, in the order in which they begin; computation goes on
until it waits for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Events = Sequence[Sequence[Any]]


KINDS = ("all_reduce", "all_gather", "reduce_scatter")


class Collective(NamedTuple):
    """One kind of collective at one size."""

    name: str
    elements: int
    dtype: str


class Service(NamedTuple):
    """What a collective takes by itself, at a few rates."""

    rates_B_per_s: tuple[float, ...]  # rising
    taken_s: tuple[float, ...]

    def seconds(self, rate_B_per_s: float) -> float:
        """At any rate: between two that were tried a line over logarithms; below them bytes alone count, so
        what the slowest took grows as the rate falls; above them latency alone."""
        slower = max(self.rates_B_per_s[0] / rate_B_per_s, 1.0)
        rates, taken_s = np.log(self.rates_B_per_s), np.log(self.taken_s)
        return slower * float(np.exp(np.interp(np.log(rate_B_per_s), rates, taken_s)))


def collectives(events: Events) -> list[Collective]:
    """Those of a trace, each kind once; raises ValueError for one that is none of `KINDS`."""
    found = list(dict.fromkeys(Collective(*event[2:]) for event in events if event[0] == "begin"))
    for one in found:
        if one.name not in KINDS:
            raise ValueError(f"a collective of {one.elements} elements is none that is timed by itself")
    return found


def alone_s(events: Events, times: Sequence[Sequence[Sequence[float]]]) -> dict[Collective, list[float]]:
    """What collectives of each kind took where ranks slept instead of computing.

    `times[rank][number]` is when it began and was over, by one clock. It took from when all ranks had begun
    it, and the one that was over before it was, until it was over on all.
    """
    taken_s: dict[Collective, list[float]] = {one: [] for one in collectives(events)}
    last = [
        (max(over_s for _, over_s in ranks), max(begun_s for begun_s, _ in ranks))
        for ranks in zip(*times, strict=True)
    ]
    begun = [Collective(*event[2:]) for event in events if event[0] == "begin"]
    free_s = 0.0
    for (over_s, begun_s), one in sorted(zip(last, begun, strict=True)):
        taken_s[one].append(over_s - min(max(begun_s, free_s), over_s))
        free_s = over_s
    return taken_s


def computed_s(events: Events) -> float:
    """What the update computes, without a network."""
    return float(sum(event[1] for event in events if event[0] == "compute"))


def merged(ranks: Sequence[Sequence[Events]]) -> Events:
    """One trace of several updates on several ranks: of each stretch the median, of the slowest rank.

    Raises ValueError where ranks or updates differ in more than how long they compute.
    """
    shape = [_shape(event) for event in ranks[0][0]]
    if any([_shape(event) for event in trace] != shape for rank in ranks for trace in rank):
        raise ValueError("updates differ in their collectives, or in the order of them")
    found = []
    for place, event in enumerate(ranks[0][0]):
        if event[0] == "compute":
            slowest_s = max(statistics.median(trace[place][1] for trace in rank) for rank in ranks)
            event = ["compute", slowest_s]
        found.append(event)
    return found


def step_seconds(events: Events, service_s: Callable[[Collective], float]) -> float:
    """How long the update takes where each collective takes `service_s` by itself."""
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
    """From seconds, several at each rate (B/s): their mean, and never nothing.

    Raises ValueError without a rate.
    """
    if not samples:
        raise ValueError("a collective is timed at one rate at least")
    rates = tuple(sorted(samples))
    return Service(rates, tuple(max(statistics.fmean(samples[rate]), LEAST_S) for rate in rates))


LEAST_S = 1e-7
"""Of a collective that was over together with the one before."""


def _shape(event: Sequence[Any]) -> tuple[Any, ...]:
    return (event[0],) if event[0] == "compute" else tuple(event)
