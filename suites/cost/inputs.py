"""Inputs with a range and a source each: checked, and drawn within their ranges. Sizes: draws D."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.instruments.prices import DATE, DATES
from harness.records import Unavailable
from suites.cost.cost_model import Amount

SOURCE_KEYS = ("at", "date", "source")

GIVEN = "given by the user"


class CostInputs(NamedTuple):
    """The inputs of an owner or of a machine, by name."""

    values: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]  # of those that are uncertain
    sources: Mapping[str, str]  # in words, with the date


def checked_inputs(
    values: Mapping[str, float], ranges: Mapping[str, Any], sources: Mapping[str, Any], where: str
) -> CostInputs:
    """Return inputs with their ranges and sources; raises `Unavailable`, one line that names the input."""
    ends = {name: _range(name, value, ranges[name]) for name, value in values.items() if name in ranges}
    texts = {name: _source(name, value, sources.get(name), where) for name, value in values.items()}
    return CostInputs(values, ends, texts)


def refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    """Raise `Unavailable` where a mapping names something that is not an input."""
    for name in given:
        if name not in known:
            raise Unavailable(f"{what}.{name}: no such input; allowed: {', '.join(known)}")


def _range(name: str, value: float, ends: Any) -> tuple[float, float]:
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(one, int | float) for one in ends):
        raise Unavailable(f"ranges.{name}={ends}: expected [LOW, HIGH]")
    low, high = map(float, ends)
    if not 0 <= low <= high < float("inf"):
        raise Unavailable(f"ranges.{name}={ends}: expected [LOW, HIGH], of at least 0, the lower one first")
    if not low <= value <= high:
        raise Unavailable(
            f"{name}={value:g}: outside of its range {low:g} to {high:g}; give ranges.{name}=[LOW,HIGH] too"
        )
    return low, high


def _source(name: str, value: float, stated: Any, where: str) -> str:
    """Return the source of a value in words; that of another value does not apply."""
    if not isinstance(stated, dict):
        raise Unavailable(f"sources.{name}: missing in {where}; expected {{at, date, source}}")
    for key in SOURCE_KEYS:
        if stated.get(key) is None or stated[key] == "":
            raise Unavailable(f"sources.{name}.{key}: missing; a price needs its value, date and source")
    date = str(stated["date"])
    if not DATE.fullmatch(date):
        raise Unavailable(f"sources.{name}.date={date}: expected {DATES}")
    return f"{stated['source']}, {date}" if float(stated["at"]) == value else GIVEN


def drawn(inputs: CostInputs, count: int, seed: int, prefix: str) -> dict[str, Amount]:
    """Return every input, uncertain ones as uniform draws (D,) within their range.

    Draws depend on the seed, the prefix and the input's name alone, so machines that share an owner share
    its draws.
    """
    draws: dict[str, Amount] = dict(inputs.values)
    for name, (low, high) in inputs.ranges.items():
        rng = np.random.default_rng([seed, zlib.crc32(f"{prefix}.{name}".encode())])
        draws[name] = rng.uniform(low, high, count)
    return draws


def with_input(inputs: CostInputs, name: str, value: float) -> CostInputs:
    """Return the inputs with another value of one of them."""
    return inputs._replace(values={**inputs.values, name: value}) if name in inputs.values else inputs
