"""What a field may be and where it is read, for its annotation: `Annotated[int, Bounds(at_least=1)]`.

Workloads of suites and settings of techniques state it. `harness.config.validation` checks values by it
before anything runs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

Rule = tuple[Callable[[float, float], bool], str]
"""A predicate on a value and its bound, and its words in error messages."""


def is_multiple(value: float, other: float) -> bool:
    """Return whether a number is a multiple of another; no number is a multiple of 0."""
    return other != 0 and value % other == 0


BOUNDS: Mapping[str, Rule] = {
    "at_least": (operator.ge, "of at least"),
    "above": (operator.gt, "above"),
    "at_most": (operator.le, "of at most"),
    "below": (operator.lt, "below"),
    "divisible_by": (is_multiple, "divisible by"),
}
"""Bounds by a number."""

RELATIONS: Mapping[str, Rule] = {
    "multiple_of": (is_multiple, "a multiple of"),
    "not_above": (operator.le, "at most"),
}
"""Bounds by the value of another field of the same class; without effect where either is None.

They name the field, or a part of it: `"hop_s * 0.25"`.
"""

_PART = re.compile(r"(\w+) \* (\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one field, by the names of `BOUNDS` and `RELATIONS`."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    divisible_by: int | None = None
    multiple_of: str | None = None
    not_above: str | None = None

    def __contains__(self, value: object) -> bool:
        """Return whether a value is a number within its bounds by numbers."""
        stated = [(rule, getattr(self, name)) for name, (rule, _) in BOUNDS.items()]
        if not isinstance(value, int | float):
            return False
        return all(bound is None or rule(value, bound) for rule, bound in stated)


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """States that a field is read only where another one has one of these values; elsewhere it is refused."""

    field: str
    values: tuple[Any, ...]


def field_and_factor(relation: str) -> tuple[str, float]:
    """Return the field that a relation names, and the factor of its value, 1 where none is given."""
    part = _PART.fullmatch(relation)
    return (part[1], float(part[2])) if part else (relation, 1)


PositiveInt = Annotated[int, Bounds(at_least=1)]  # a count
