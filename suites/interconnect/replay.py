"""Steps through a traced update with collectives of a given length: a prediction of the update's time. Pure.

One link that carries one collective after the other, in the order in which they begin; computation goes on
until it waits for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Events = Sequence[Sequence[Any]]


class Collective(NamedTuple):
    """One kind of collective at one size."""

    name: str
    elements: int
    dtype: str


ELEMENT_B = {"float64": 8, "float32": 4, "bfloat16": 2}
HALVES = {"all_gather": 1, "all_reduce": 2, "reduce_scatter": 2}
"""Of the tensor: what each of two ranks sends of it."""


class Service(NamedTuple):
    """What a collective takes without computation: `latency_s`, and `bytes_B` over the link's rate."""

    latency_s: float
    bytes_B: float

    def seconds(self, rate_B_per_s: float) -> float:
        """At that rate."""
        return self.latency_s + self.bytes_B / rate_B_per_s


def collectives(events: Events) -> list[Collective]:
    """Those of a trace, each once."""
    return list(dict.fromkeys(Collective(*event[2:]) for event in events if event[0] == "begin"))


def without_computation(events: Events) -> Events:
    """The update's collectives alone; raises ValueError for one that is not timed by itself."""
    for one in collectives(events):
        if one.name not in HALVES or one.dtype not in ELEMENT_B:
            raise ValueError(
                f"a collective of {one.elements} elements in {one.dtype} is none that is foretold"
            )
    return [event for event in events if event[0] != "compute"]


def shared(events: Events, together: Service) -> dict[Collective, Service]:
    """Each collective's part of what all of an update's take together: of bytes by its own, of latency alike.

    On gloo's way, where a reduce-scatter moves as much as an all-reduce, and an all-gather half of that.
    """
    begun = [Collective(*event[2:]) for event in events if event[0] == "begin"]
    moved_B = {one: one.elements * ELEMENT_B[one.dtype] * HALVES[one.name] for one in begun}
    per_byte = together.bytes_B / max(sum(moved_B[one] for one in begun), 1)
    return {one: Service(together.latency_s / len(begun), moved_B[one] * per_byte) for one in begun}


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


def fitted(samples: Mapping[float, float]) -> Service:
    """Latency and bytes from seconds at several rates (B/s), errors counted relative to the seconds.

    Weighted least squares of t = a + b / rate. Neither is below zero: where the best would be, it is zero.
    Raises ValueError for fewer than two rates.
    """
    if len(samples) < 2:
        raise ValueError("latency and bytes are told apart by two rates at least")
    rows = [(1 / t_s, 1 / (rate * t_s)) for rate, t_s in samples.items()]  # a x + b y = 1
    xx, xy, yy = (sum(p * q for p, q in pairs) for pairs in _products(rows))
    x, y = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = xx * yy - xy * xy
    latency_s, bytes_B = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if latency_s < 0:
        return Service(0.0, y / yy)
    if bytes_B < 0:
        return Service(x / xx, 0.0)
    return Service(latency_s, bytes_B)


def _products(
    rows: Sequence[tuple[float, float]],
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], list[tuple[float, float]]]:
    return [(x, x) for x, _ in rows], list(rows), [(y, y) for _, y in rows]


def _shape(event: Sequence[Any]) -> tuple[Any, ...]:
    return (event[0],) if event[0] == "compute" else tuple(event)
