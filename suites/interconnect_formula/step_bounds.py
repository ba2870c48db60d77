"""Step time over several nodes by closed formulas: bounds from a best case to a worst case.

Two assumptions about traffic and two about overlap span the bounds. The best case moves `node_aware` traffic
and hides as much of it as possible. The worst case moves `ring` traffic and hides nothing.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Self

from suites.training.step_time.collectives import overlapped_s
from suites.training.step_time.node_traffic import (
    Cluster,
    Exchange,
    TrafficPattern,
    communication_seconds,
    latency_seconds,
    link_bytes,
)


class Assumption(NamedTuple):
    """One assumption about traffic and one about overlap."""

    traffic: TrafficPattern
    overlap: Literal["none", "perfect"]


BEST = Assumption("node_aware", "perfect")
WORST = Assumption("ring", "none")


class BestAndWorstCase(NamedTuple):
    """One quantity under `BEST` and under `WORST`; `at_best` need not be the smaller of the two."""

    at_best: float
    at_worst: float

    @classmethod
    def same(cls, value: float) -> Self:
        """Return the bounds of a value that depends on neither assumption."""
        return cls(value, value)


def step_seconds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: float, assumed: Assumption
) -> float:
    """Return the seconds per step: computation plus communication, or the longer where they overlap."""
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, assumed.traffic)
    exposed = 0.0 if assumed.overlap == "perfect" else 1.0
    return float(overlapped_s(compute_s, communication_s, exposed))


def step_bounds(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: BestAndWorstCase
) -> BestAndWorstCase:
    """Return the seconds per step in the best and in the worst case, each with its own computation."""
    return BestAndWorstCase(
        step_seconds(exchange, cluster, rate_B_per_s, compute_s.at_best, BEST),
        step_seconds(exchange, cluster, rate_B_per_s, compute_s.at_worst, WORST),
    )


def compute_left(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, step_s: float
) -> BestAndWorstCase:
    """Return the seconds of computation in a step that took `step_s` over a link of `rate_B_per_s`.

    The model is solved for the computation under each assumption. It reproduces this one step by
    construction, and only steps at other rates are predictions. With perfect overlap the computation is the
    full step. At rates above the calibrated one the bounds change places, because the sum falls there and the
    maximum does not. Raises ValueError where communication alone takes longer than the step.
    """
    communication_s = communication_seconds(exchange, cluster, rate_B_per_s, WORST.traffic)
    if communication_s >= step_s:
        raise ValueError(
            f"no time is left for computation: {WORST.traffic} traffic alone takes {communication_s:.3g} s "
            f"of a step of {step_s:.3g} s"
        )
    return BestAndWorstCase(step_s, step_s - communication_s)


def sufficient_rate(
    exchange: Exchange,
    cluster: Cluster,
    compute_s: BestAndWorstCase,
    added: float = 0.05,
    other: Exchange | None = None,
) -> BestAndWorstCase:
    """Return the link rate in B/s from which a step takes at most (1 + added) times that of `other`.

    `other`: an exchange that sends less; None sends nothing, so the network adds the share `added` to the
    computation. With traffic B and latency L, without overlap: (B - (1 + added) B') / (added compute_s + (1 +
    added) L' - L). With perfect overlap: B / ((1 + added) compute_s - L), or less where both steps wait for
    their links. Infinite where latency alone adds more; 0 on one node.
    """

    def traffic_and_latency(traffic: TrafficPattern) -> tuple[float, float, float, float]:
        own = link_bytes(exchange, cluster, traffic), latency_seconds(exchange, cluster)
        if other is None:
            return *own, 0.0, 0.0
        return *own, link_bytes(other, cluster, traffic), latency_seconds(other, cluster)

    more = 1 + added
    sent_B, latency_s, others_B, others_s = traffic_and_latency(BEST.traffic)
    at_best = min(
        _rate(sent_B, more * compute_s.at_best - latency_s),
        _rate(sent_B - more * others_B, more * others_s - latency_s),
    )
    sent_B, latency_s, others_B, others_s = traffic_and_latency(WORST.traffic)
    at_worst = _rate(sent_B - more * others_B, added * compute_s.at_worst + more * others_s - latency_s)
    return BestAndWorstCase(at_best, at_worst)


def _rate(traffic_B: float, room_s: float) -> float:
    """Return the least rate at which `traffic_B` takes at most `room_s`."""
    if room_s > 0:
        return max(traffic_B, 0.0) / room_s
    return math.inf if traffic_B > 0 or room_s < 0 else 0.0
