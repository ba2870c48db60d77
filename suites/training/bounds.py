"""The bounds of a technique's setting, for its annotation: `Annotated[int, Bounds(at_least=1)]`.

harness/techniques.py reads them in the source and checks a list before any cell runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass

WITHIN: dict[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a number may be, in the words of `harness.validation.BOUNDS`."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def allow(self, value: float) -> bool:
        """Return whether a number is within all bounds."""
        return all(WITHIN[rule](value, bound) for rule, bound in self.stated().items())

    def stated(self) -> dict[str, float]:
        """Return the bounds that there are, by name."""
        return {rule: bound for rule, bound in asdict(self).items() if bound is not None}

    def __str__(self) -> str:
        return " and ".join(f"{rule.replace('_', ' ')} {bound}" for rule, bound in self.stated().items())
