"""Scale the paper's links to this host, so that the ratio of communication to computation is the paper's.

A node here computes less and sends less than one of eight H100. A link is slowed down by both factors
together: rate x (bytes here / bytes there) x (seconds of computation there / seconds of computation here).
Each strategy's links are scaled by its own bytes and computation here. "There" is always the quoted run of
FSDP2, so every strategy has that run's ratio; an ideal link without overlap would gain each the same.
"""

from __future__ import annotations

from typing import NamedTuple

from suites.training.step_time.published_run import ELEMENT_B, FAST_B_PER_S, FAST_STEP_S, NODES, PARAMETERS


class StepCost(NamedTuple):
    """Bytes per step on a node's link, in each direction, and seconds per step without the link."""

    link_B: float
    compute_s: float


COLLECTIVES = 3  # two all-gathers, one reduce-scatter


def paper_run() -> StepCost:
    """Return the cost of a step of Table III's run.

    Each node needs the other's half of the parameters three times. That is the least that any algorithm moves
    between two nodes. The computation is what remains of the fast link's 4.4 s.
    """
    link_B = COLLECTIVES * PARAMETERS * ELEMENT_B * (NODES - 1) / NODES
    return StepCost(link_B, FAST_STEP_S - link_B / FAST_B_PER_S)


def scaled(rate_B_per_s: float, here: StepCost, there: StepCost) -> float:
    """Return the rate that relates to `here` as `rate_B_per_s` relates to `there`."""
    return rate_B_per_s * (here.link_B / there.link_B) * (there.compute_s / here.compute_s)
