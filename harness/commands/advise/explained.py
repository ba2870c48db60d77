"""Where a user's own step stands: against the prediction and published steps, and what would explain it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.commands.fit.lines import wrapped
from harness.records import Record

LISTED = 5
"""Causes that are listed."""

NORMAL_90 = 1.645
"""Standard deviations between the middle and either end of a 90 % interval of a normal distribution."""


class CauseFamily(NamedTuple):
    """Causes of one kind: how likely before one looks, and how to find out."""

    prior: float
    find_out: str


FAMILIES: Mapping[str, CauseFamily] = {
    "network": CauseFamily(0.2, "time nccl-tests' all_reduce_perf over all nodes"),
    "overlap": CauseFamily(0.15, "look for --tp-comm-overlap, or for collectives alone in a trace"),
    "recompute": CauseFamily(0.15, "look up the recomputation in the run's own arguments"),
    "launches": CauseFamily(0.15, "look for gaps between kernels in a trace: harness.profile trace=FILE"),
    "straggler": CauseFamily(0.1, "compare the ranks' own step times and clocks"),
    "loader": CauseFamily(0.1, "train on synthetic data"),
    "allocator": CauseFamily(0.15, "read num_alloc_retries of torch.cuda.memory_stats()"),
    "batch": CauseFamily(0.05, "compare the tokens of an update with the run's own"),
    "power": CauseFamily(0.05, "read power and clocks with nvidia-smi -q -d CLOCK,POWER"),
}
"""By `cause/<family>` of suite layouts. Priors are set by hand and order causes alone; none is printed."""


class LikelyCause(NamedTuple):
    """A cause in the size that fits best."""

    family: str
    title: str
    step_s: float
    log_likelihood: float  # but for a common constant


def likely_causes(causes: Mapping[tuple[str, str], float], own_s: float, sigma: float) -> list[LikelyCause]:
    """Return the best size of each family, the likeliest first.

    `causes`: seconds by family and title. `sigma`: of the logarithm of published over predicted seconds. A
    cause is as likely as its prior, divided among the sizes of its family, times the normal density of the
    user's own seconds around what it predicts.
    """
    sizes = {family: sum(one == family for one, _ in causes) for family, _ in causes}
    found = [
        LikelyCause(
            family, title, step_s, _log_likelihood(FAMILIES[family], sizes[family], own_s / step_s, sigma)
        )
        for (family, title), step_s in causes.items()
    ]
    found.sort(key=lambda one: -one.log_likelihood)
    first = {one.family: one for one in reversed(found)}
    return sorted(first.values(), key=lambda one: -one.log_likelihood)


def _log_likelihood(family: CauseFamily, sizes: int, ratio: float, sigma: float) -> float:
    return math.log(family.prior / sizes) - (math.log(ratio) / sigma) ** 2 / 2


def of_mine(record: Record, own_s: float, predicted: Mapping[str, float]) -> Iterator[str]:
    """Yield where the user's own step stands, and which causes would explain it, the likeliest first."""
    low, high, step_s = predicted["step_time/low"], predicted["step_time/high"], predicted["step_time"]
    where = "inside" if low <= own_s <= high else "above" if own_s > high else "below"
    rate = predicted["model_flop_rate"] * step_s / own_s / 1e12
    yield (
        f"Yours: {own_s:.3g} s, {own_s / step_s:.2f} times the prediction, {where} the 90 % interval; "
        f"{rate:.0f} TFLOP/s per GPU as this answer counts."
    )
    if where == "inside":
        return
    causes = {
        (one.metric.removeprefix("cause/"), one.method): one.samples[-1]
        for one in record.measurements
        if one.metric.startswith("cause/")
    }
    alike = {key: seconds for key, seconds in causes.items() if (seconds > step_s) == (own_s > step_s)}
    if not alike:
        return
    yield "What would explain it, the likeliest first, with the seconds that it predicts"
    for one in likely_causes(alike, own_s, math.log(high / low) / (2 * NORMAL_90))[:LISTED]:
        reaches = ""
        if not low <= own_s * step_s / one.step_s <= high:
            less = (one.step_s < own_s) == (own_s > step_s)
            reaches = ", which does not suffice" if less else ", which is more than yours"
        yield from wrapped(
            f"  {one.title}: {one.step_s:.3g} s{reaches}; {FAMILIES[one.family].find_out}", "    "
        )
    yield from wrapped(
        "  Or another count of FLOP, tokens or steps than this answer's, which no cause changes.", "    "
    )


def of_nearest(record: Record) -> Iterator[str]:
    """Yield the published steps that are the nearest, with what the model predicts for them."""
    values: dict[str, dict[str, float]] = {}
    for one in record.measurements:
        if one.metric.startswith("nearest/"):
            values.setdefault(one.method, {})[one.metric.removeprefix("nearest/")] = one.samples[-1]
    for words, of in values.items():
        published, predicted = (of["flop_per_gpu"] / of[name] / 1e12 for name in ("published", "predicted"))
        yield from wrapped(
            f"Nearest published: {words}: {of['published']:.3g} s, {published:.0f} TFLOP/s per GPU; "
            f"predicted for it {of['predicted']:.3g} s, {predicted:.0f}."
        )
