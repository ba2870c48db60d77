"""The stack_published suite's types: a published ladder, and all ladders together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from harness.records import Unavailable
from suites.stack_published.workload import Workload

RATES = ("token/s", "sample/s")
"""Units of which more is better; of all others less is."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload, as it is: nothing is run."""

    workload: Workload

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
