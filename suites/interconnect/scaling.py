"""Scales the paper's links to this host, so that communication stands to computation as in the paper's run.

Pure. A node here computes less and sends less than one of eight H100; a link is slowed by as much as both
together ask for: rate x (bytes here / bytes there) x (seconds of computation there / here).
"""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """A published run: what a node's link carries a step, and what a step takes beside it."""

    link_B: float  # a node's link, each way, a step
    compute_s: float


PARAMETERS = 12.2e9  # Gemma 3 12B
ELEMENT_B = 2  # bf16
NODES, GPUS_PER_NODE = 2, 8
COLLECTIVES = 3  # two all-gathers, one reduce-scatter
FAST_B_PER_S, FAST_STEP_S = 400e9, 4.4
SLOW_B_PER_S = 1.25e9
"""Zhu, "Network and Storage Benchmarks for LLM Training on the Cloud", 2025, which Table III quotes."""


def paper_run() -> Run:
    """Of Table III: each node needs the other's half of the parameters, three times a step.

    That is the least that any algorithm moves between two nodes. What a step takes beside the link is had
    from the fast link's 4.4 s.
    """
    link_B = COLLECTIVES * PARAMETERS * ELEMENT_B * (NODES - 1) / NODES
    return Run(link_B, FAST_STEP_S - link_B / FAST_B_PER_S)


def scaled(rate_B_per_s: float, here: Run, there: Run) -> float:
    """The rate here that is to `here` what `rate_B_per_s` is to `there`."""
    return rate_B_per_s * (here.link_B / there.link_B) * (there.compute_s / here.compute_s)
