"""Utilization by training compute: where it falls, where no layout finishes, and which inputs move that.

Sizes: runs R, which a stack of workloads describes; points F of a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from suites.seconds.search import GRID, LayoutGrid, best_layouts, taken
from suites.seconds.workload import LimitsWorkload
from suites.training.step_time.collectives import Floats

PER_DECADE = 2
"""Points of a curve per factor of ten, for each draw."""

QUANTILES = (5, 25, 50, 75, 95)


class InputRange(NamedTuple):
    """Between which values an input is drawn, and why there."""

    low: float
    high: float
    logarithmic: bool
    why: str


RANGES: Mapping[str, InputRange] = {
    "overlap": InputRange(0.0, 1.0, False, "from nothing hidden to all that can be"),
    "batch_tokens": InputRange(2.0**22, 2.0**26, True, "a quarter to four times that of Llama 3 405B"),
    "batch_exponent": InputRange(
        0.0, 0.5, False, "a constant batch, to one that grows with the square root of the data"
    ),
    "depth_exponent": InputRange(
        0.0, 1 / 3, False, "126 layers at any size, to depth in proportion to width"
    ),
    "tokens_per_parameter": InputRange(
        10.0, 40.0, True, "half to twice the 20 of the source's earlier model"
    ),
    "efficiency": InputRange(0.5, 0.75, False, "of kernels; the source's earlier model has 0.6"),
    "network_B_per_s": InputRange(25e9, 100e9, True, "half to twice 400 Gbit/s per GPU"),
    "latency": InputRange(1 / 3, 3.0, True, "a third to three times of all latencies together"),
    "pointwise_passes": InputRange(2.0, 6.0, False, "around the assumed 4"),
}
LATENCIES = ("kernel_s", "collective_s", "node_hop_s", "network_hop_s")


def with_input(given: LimitsWorkload, name: str, value: float) -> LimitsWorkload:
    """Return the workload with one input changed; `latency` is a factor of all of them."""
    if name == "latency":
        slower: dict[str, Any] = {one: getattr(given, one) * value for one in LATENCIES}
        return replace(given, **slower)
    if name == "batch_tokens":
        value = round(value / given.seq_len) * given.seq_len
    changed: dict[str, Any] = {name: value}
    return replace(given, **changed)


def drawn(count: int, seed: int) -> dict[str, Floats]:
    """Return that many draws of each input, stratified: one from each of so many equal parts of its range."""
    random = np.random.default_rng(seed)
    draws = {}
    for name, (low, high, logarithmic, _) in RANGES.items():
        share = (random.permutation(count) + random.random(count)) / count
        draws[name] = low * (high / low) ** share if logarithmic else low + (high - low) * share
    return draws


def drawn_workloads(given: LimitsWorkload, draws: Mapping[str, Floats]) -> Iterator[LimitsWorkload]:
    """Yield the workload with the inputs of each draw."""
    for values in zip(*draws.values(), strict=True):
        one = given
        for name, value in zip(draws, values, strict=True):
            one = with_input(one, name, float(value))
        yield one


def one_at_a_time(given: LimitsWorkload) -> Iterator[tuple[str, LimitsWorkload, LimitsWorkload]]:
    """Yield each input with the workload at both ends of its range, all other inputs as they are."""
    for name, (low, high, _, _) in RANGES.items():
        yield name, with_input(given, name, low), with_input(given, name, high)


def rank_correlation(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation; 0 where one of both does not vary."""
    ranks = [_ranks(values) for values in (one, other)]
    spread = float(np.std(ranks[0]) * np.std(ranks[1]))
    if not spread:
        return 0.0
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean()))) / spread


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]


CHOICES: Mapping[str, tuple[float, ...]] = {
    "batch_exponent": (0.0, 0.25, 0.5),
    "depth_exponent": (0.0, 0.1667, 0.3333),
    "overlap": (0.0, 0.5, 1.0),
    "network_B_per_s": (50e9, 100e9, 200e9),
    "node_size": (8, 64, 512),
    "run_s": (7.884e6, 1.5768e7),
}
"""Values of each input; the others are the workload's."""


def combinations() -> Iterator[dict[str, float]]:
    """Yield every combination."""
    for values in product(*CHOICES.values()):
        yield dict(zip(CHOICES, values, strict=True))


def method_of(values: Mapping[str, float]) -> str:
    """Return the name of a combination, which the report reads back: `overlap=0, node_size=8`."""
    return ", ".join(f"{name}={value:g}" for name, value in values.items())


def chosen(given: LimitsWorkload) -> Iterator[tuple[str, LimitsWorkload]]:
    """Yield every combination's name and its workload."""
    for values in combinations():
        one = given
        for name, value in values.items():
            one = with_input(one, name, int(value) if name == "node_size" else value)
        yield method_of(values), one


LEAST, MOST = 24.0, 33.0
"""Powers of ten of the training compute, in FLOP."""

FALLEN = 0.8
"""Share of the best utilization below which it has begun to fall."""

LOW = 0.01
"""Utilization below which a run counts as infeasible: the source speaks of low utilization."""

TRIES = 4
"""Training computes that are tried between two points of a curve to find a wall between them."""

INSIDE = (0.15, 0.85)
"""Where one is tried between the two points, as a share of their distance on a logarithmic axis."""


class Walls(NamedTuple):
    """Two training computes in FLOP, and the utilization before the first; (R,) each."""

    begins: Floats
    ends: Floats
    best: Floats


def computes(per_decade: int) -> Floats:
    """Return training computes in FLOP, evenly spaced on a logarithmic axis."""
    return np.logspace(LEAST, MOST, round((MOST - LEAST) * per_decade) + 1)


def curves(given: LimitsWorkload, count: int, flop: Floats, grid: LayoutGrid = GRID) -> Floats:
    """Return the best utilization (R, F) at each training compute; 0 from the first on that none finishes."""
    used = np.zeros((count, len(flop)))
    alive = np.arange(count)
    for i, one in enumerate(flop):
        if not len(alive):
            break
        used[alive, i] = best_layouts(taken(given, alive), np.full(len(alive), one), grid).utilization
        alive = alive[used[alive, i] > 0]
    return used


def walls_of(given: LimitsWorkload, flop: Floats, used: Floats, grid: LayoutGrid = GRID) -> Walls:
    """Return the walls of curves (R, F), each searched between two points; one beyond the last is there."""
    best = used.max(axis=1)
    begins, ends = (
        _falls_below(given, flop, used, level, grid) for level in (FALLEN * best, np.full_like(best, LOW))
    )
    return Walls(begins, ends, best)


def _falls_below(
    given: LimitsWorkload, flop: Floats, used: Floats, level: Floats, grid: LayoutGrid
) -> Floats:
    """Return where utilization falls below a level (R,) after the last point that has it."""
    above = (used >= level[:, None]) & (used > 0)
    last = len(flop) - 1 - np.argmax(above[:, ::-1], axis=1)
    last[~above.any(axis=1)] = 0
    open_ = np.flatnonzero(above.any(axis=1) & (last < len(flop) - 1))
    found: Floats = flop[last]
    if not len(open_):
        return found
    low, high = flop[last[open_]], flop[last[open_] + 1]
    upper, lower = used[open_, last[open_]], used[open_, last[open_] + 1]
    for _ in range(TRIES):
        share = np.clip(shares(upper, lower, level[open_]), *INSIDE)
        middle = low * (high / low) ** share
        here = best_layouts(taken(given, open_), middle, grid).utilization
        high_enough = here >= level[open_]
        low, upper = np.where(high_enough, middle, low), np.where(high_enough, here, upper)
        high, lower = np.where(high_enough, high, middle), np.where(high_enough, lower, here)
    found[open_] = low * (high / low) ** shares(upper, lower, level[open_])
    return found


def shares(upper: Floats, lower: Floats, level: Floats) -> Floats:
    """Return at which share of their distance a line between two points on logarithmic axes is at a level.

    Halfway where the lower point is 0: there no layout finishes in time.
    """
    slope = np.log(upper / np.where(lower > 0, lower, upper))
    found: Floats = np.where(slope > 0, np.log(upper / level) / np.where(slope > 0, slope, 1.0), 0.5)
    return found
