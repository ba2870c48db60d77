"""What a GPU-hour costs its owner, by closed formulas over numbers or arrays. Sizes: draws D.

Per hour in which one GPU is used, with a capital of C dollars per GPU, repaid in equal payments over n years:

    C a(i, n) / 8760 + P PUE p + P r 12 / 8760 + C o / 8760, over the share of hours in which it is used

a: annuity factor; P: kW per GPU; p: $ per kWh; r: $ per kW and month; o: operations per year over C.

Inputs with a range and a source each: checked, and drawn within their ranges. Sizes: draws D.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.instruments.prices import DATE, DATES
from harness.records import Unavailable

FloatArray = npt.NDArray[np.float64]
Amount = float | FloatArray
"""One number, or one per draw (D,)."""

HOURS_PER_YEAR = 8760.0
MONTHS_PER_YEAR = 12.0
SECONDS_PER_HOUR = 3600.0

NO_INTEREST = 1e-300
"""Interest per year below which there is none: smaller numbers lose their digits."""

STEPS = 100
"""Halvings of an interval, after which its ends are equal in float64."""


class CostParts(NamedTuple):
    """Dollars per hour in which one GPU is used, by what they are paid for."""

    server: Amount  # repayment of the server or rack
    network: Amount  # repayment of network, storage and the rest
    interest: Amount  # of both
    electricity: Amount
    colocation: Amount
    operations: Amount

    @property
    def total(self) -> Amount:
        """Return the sum."""
        return sum(self[1:], start=self[0])


def annuity_factor(interest: Amount, life_years: Amount) -> Amount:
    """Return the yearly payment per dollar of a loan that is repaid in equal payments over its life."""
    rate = np.asarray(interest, float)
    years = np.asarray(life_years, float)
    positive = np.maximum(rate, NO_INTEREST)
    factor = positive / -np.expm1(-years * np.log1p(positive))
    factor = np.where(rate < NO_INTEREST, 1 / years, factor)
    return float(factor) if factor.ndim == 0 else factor


def cost_parts(machine: Mapping[str, Amount], owner: Mapping[str, Amount], gpus: int) -> CostParts:
    """Return the parts of a GPU-hour's cost; `machine` and `owner` by the names of a workload's fields."""
    level = owner["price_level"]
    server = machine["server_USD"] * level / gpus
    network = machine["network_USD"] * level / gpus
    capital = server + network
    power_kW = machine["power_kW"] / gpus
    life_years = owner["life_years"]
    over_life = annuity_factor(owner["interest"], life_years) - 1 / np.asarray(life_years)
    hours = HOURS_PER_YEAR * machine["used_share"]
    energy_kWh = power_kW * owner["pue"] * HOURS_PER_YEAR
    rent = power_kW * owner["colocation_USD_per_kW_month"] * MONTHS_PER_YEAR
    per_year = (
        server / life_years,
        network / life_years,
        capital * over_life,
        energy_kWh * owner["electricity_USD_per_kWh"],
        rent,
        capital * owner["operations_share"],
    )
    return CostParts(*(one / hours for one in per_year))


def usd_per_unit(usd_per_hour: Amount, per_s: float) -> Amount:
    """Return dollars per token or sample of a GPU at a price per hour and a throughput per second."""
    return usd_per_hour / (per_s * SECONDS_PER_HOUR)


def solved(function: Callable[[float], float], target: float, low: float, high: float) -> float | None:
    """Return where an increasing function has a value, by bisection; None where it is not in between."""
    if not function(low) <= target <= function(high):
        return None
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return (low + high) / 2


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
