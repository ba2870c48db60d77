"""The uncertain inputs: their ranges, draws of all of them at once, and one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from suites.limits.subject import Workload
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


def with_input(given: Workload, name: str, value: float) -> Workload:
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


def drawn_workloads(given: Workload, draws: Mapping[str, Floats]) -> Iterator[Workload]:
    """Yield the workload with the inputs of each draw."""
    for values in zip(*draws.values(), strict=True):
        one = given
        for name, value in zip(draws, values, strict=True):
            one = with_input(one, name, float(value))
        yield one


def one_at_a_time(given: Workload) -> Iterator[tuple[str, Workload, Workload]]:
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
