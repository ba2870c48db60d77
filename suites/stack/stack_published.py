"""The stack_published suite: what others published of training that was made faster step by step.

Each workload is one public ladder with its source. What each step gained, what all gained, and how gains are
distributed is computed here from the published values; nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from statistics import median

from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.stack.workload import StackPublishedWorkload

RATES = ("token/s", "sample/s")  # units of which more is better; of all others less is


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload, as it is: nothing is run."""

    workload: StackPublishedWorkload

    @property
    def gains(self) -> dict[str, float]:
        """Return what each step gained over the one before it, by its name; of all ladders, each step's."""
        given = self.workload
        if given.kind == "ladder":
            return gains_of(given.rungs, given.unit)
        return {
            f"{name}, {rung}": gain
            for name, ladder in given.ladders.items()
            for rung, gain in gains_of(ladder["rungs"], ladder["unit"]).items()
        }


def gains_of(rungs: Mapping[str, float], unit: str) -> dict[str, float]:
    """Return each step's gain: the rate after it over that before, or the time before over that after.

    Raises `Unavailable` for fewer than two values, and for one that is not positive and finite.
    """
    if len(rungs) < 2:
        raise Unavailable(f"a ladder has a start and a step at least, not {len(rungs)} values")
    if wrong := {name: value for name, value in rungs.items() if not 0 < value < math.inf}:
        raise Unavailable(f"values must be positive and finite: {wrong}")
    after = {name: (one, other) for (_, one), (name, other) in pairwise(rungs.items())}
    return {name: other / one if unit in RATES else one / other for name, (one, other) in after.items()}


COMMON = (1.3, 2.0)  # the article's "30-100%" as gains: what claims compare shares with

ROUNDING = 1e-9


def build(workload: Json, seed: int) -> Subject:
    """Return the ladder; raises `Unavailable` without a step, or with a value that is not positive."""
    subject = Subject(StackPublishedWorkload(**workload))
    _ = subject.gains
    return subject


def check(subject: Subject) -> None:
    """Compare the product of a ladder's steps with its ends; raises `WrongResult`."""
    given = subject.workload
    if given.kind != "ladder":
        return
    ends = list(given.rungs.values())
    (whole,) = gains_of({"start": ends[0], "end": ends[-1]}, given.unit).values()
    product = math.prod(subject.gains.values())
    if not math.isclose(product, whole, rel_tol=ROUNDING):
        raise WrongResult(f"the steps multiply to {product:.6g}, and the ends differ by {whole:.6g}")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    given = subject.workload
    return {
        "device": "cuda",
        "device_name": given.device_name,
        "work": given.work,
        "published_by": given.published_by,
        "provenance": given.provenance,
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Yield each step's gain, and what follows from all of them."""
    gains = subject.gains
    values = list(gains.values())
    if subject.workload.kind == "ladder":
        for name, gain in gains.items():
            yield _published("gain", gain, name)
        yield _published("whole_gain", math.prod(values))
        yield _published("best_gain", max(accumulate(values, mul)))  # later steps may trade speed for memory
    yield _published("largest_gain", max(values))
    yield _published("median_gain", median(values))
    yield _published("steps", len(values))
    for name, share in shares(values).items():
        yield _published(name, share)


def shares(gains: Sequence[float]) -> dict[str, float]:
    """Return which shares of the gains are losses, below, within and above the article's range."""
    low, high = COMMON
    counts = {
        "share_slower": sum(gain < 1 for gain in gains),
        "share_below": sum(1 <= gain < low for gain in gains),
        "share_within": sum(low <= gain <= high for gain in gains),
        "share_above": sum(gain > high for gain in gains),
    }
    return {name: count / len(gains) for name, count in counts.items()}


def _published(metric: str, value: float, method: str = "") -> Reading:
    return Reading(metric, "1", value, Origin.PUBLISHED, method)
