"""What a GPU-hour costs its owner, by closed formulas over numbers or arrays. Sizes: draws D.

Per hour in which one GPU is used, with a capital of C dollars per GPU, repaid in equal payments over n years:

    C a(i, n) / 8760 + P PUE p + P r 12 / 8760 + C o / 8760, over the share of hours in which it is used

a: annuity factor; P: kW per GPU; p: $ per kWh; r: $ per kW and month; o: operations per year over C. Inputs
have a range and a source each: they are checked, and drawn within their ranges.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.instruments.prices import DATE, DATES, PriceList, price_lists
from harness.records import Origin, Reading, Unavailable
from suites.cost.workload import Workload

FloatArray = npt.NDArray[np.float64]
Amount = float | FloatArray
"""One number, or one per draw (D,)."""

HOURS_PER_YEAR = 8760.0
MONTHS_PER_YEAR = 12.0
SECONDS_PER_HOUR = 3600.0

NO_INTEREST = 1e-300
"""Interest per year below which there is none: smaller numbers lose their digits."""


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


LEAST_USD, MOST_USD, LEAST_KW, MOST_KW = 1_000, 200_000, 0.2, 5.0
"""Capital and power per GPU that can be meant."""

LEAST_RENT = 10.0
"""Dollars per kW and month below which a rent that is not 0 is taken to be per hour or per year."""


def refuse_confused_units(machine: Machine, owner: CostInputs) -> None:
    """Raise `Unavailable`, one line that names the input and the unit that was probably meant."""
    values, gpus = machine.inputs.values, machine.gpus
    per_gpu = (values["server_USD"] + values["network_USD"]) / gpus
    if not LEAST_USD <= per_gpu <= MOST_USD:
        too_much = per_gpu > MOST_USD
        meant = "a node's price needs the node's gpus" if too_much else "is it the price of one GPU?"
        raise Unavailable(
            f"server_USD={values['server_USD']:g}: ${per_gpu:,.0f} per GPU with gpus={gpus}, expected "
            f"{LEAST_USD:,} to {MOST_USD:,}; {meant}"
        )
    power_kW = values["power_kW"] / gpus
    if not LEAST_KW <= power_kW <= MOST_KW:
        meant = "is it in W, or of a node?" if power_kW > MOST_KW else "is it the power of one GPU?"
        raise Unavailable(
            f"power_kW={values['power_kW']:g}: {power_kW:.3g} kW per GPU with gpus={gpus}, expected "
            f"{LEAST_KW:g} to {MOST_KW:g}; {meant}"
        )
    rent = owner.values["colocation_USD_per_kW_month"]
    if 0 < rent < LEAST_RENT:
        raise Unavailable(
            f"colocation_USD_per_kW_month={rent:g}: expected 0 or at least {LEAST_RENT:g}; is it per hour?"
        )


def refuse_wrong_throughput(given: Workload) -> None:
    """Raise `Unavailable` where a throughput is not positive, or a pair lacks that of its machine."""
    if given.tokens_per_s and given.samples_per_s:
        raise Unavailable("samples_per_s: give it or tokens_per_s, not both")
    if given.samples_per_s and not given.sample:
        raise Unavailable("sample: missing; expected what a sample is, as an image of 512 x 512")
    for unit, published in (("tokens", given.tokens_per_s), ("samples", given.samples_per_s)):
        for name, per_s in published.items():
            if not isinstance(per_s, int | float) or not 0 < per_s < math.inf:
                raise Unavailable(f"{unit}_per_s.{name}={per_s}: expected {unit}/s of one GPU, above 0")
    if given.kind == "pair" and given.machine not in (given.samples_per_s or given.tokens_per_s):
        unit = "samples" if given.samples_per_s else "tokens"
        raise Unavailable(f"{unit}_per_s.{given.machine}: missing; a pair has the {unit}/s of both machines")


OWNER = (
    "price_level",
    "life_years",
    "interest",
    "electricity_USD_per_kWh",
    "pue",
    "colocation_USD_per_kW_month",
    "operations_share",
)
"""Inputs that both machines share."""

OF_PRICE = ("server_USD", "network_USD", "power_kW")
"""Inputs of each machine that may all be unknown."""

OF_MACHINE = (*OF_PRICE, "used_share")
"""Inputs of each machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine by its unit of sale, with its inputs."""

    name: str  # in conf/hardware
    device_name: str
    gpus: int
    inputs: CostInputs  # without any where only price lists have its cost

    @property
    def has_formula(self) -> bool:
        """Return whether its cost can be calculated."""
        return bool(self.inputs.values)


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload, its owner's inputs, the machine of this variant, and that of the baseline."""

    workload: Workload
    owner: CostInputs
    machine: Machine
    baseline: Machine
    seed: int


def machine_of(source: Any, where: str) -> Machine:
    """Return the machine that a workload or a variant's settings describe; raises `Unavailable`."""
    values = {name: getattr(source, name) for name in OF_MACHINE}
    missing = [name for name, value in values.items() if value is None]
    if missing == list(OF_PRICE):
        values = {}
    elif missing:
        raise Unavailable(f"{missing[0]}: missing; give all of {', '.join(OF_PRICE)}, or none of them")
    inputs = checked_inputs(values, source.ranges, source.sources, where)
    return Machine(source.machine, source.device_name, source.gpus, inputs)


def central_parts(subject: Subject, machine: Machine, owner: CostInputs | None = None) -> CostParts:
    """Return the parts of a GPU-hour's cost in dollars, every input at its own value."""
    return cost_parts(machine.inputs.values, (owner or subject.owner).values, machine.gpus)


def drawn_total(subject: Subject, machine: Machine) -> Amount:
    """Return dollars per GPU-hour of each draw (D,)."""
    count = subject.workload.draws
    owner = drawn(subject.owner, count, subject.seed, "owner")
    own = drawn(machine.inputs, count, subject.seed, machine.name)
    return cost_parts(own, owner, machine.gpus).total


def listed(subject: Subject, machine: Machine) -> Iterator[tuple[PriceList, float]]:
    """Yield each price list that has a machine, with its dollars per GPU-hour."""
    for one in price_lists(subject.workload.prices):
        if machine.name in one.usd_per_h:
            yield one, one.usd_per_h[machine.name]


def calibrated_owner(subject: Subject) -> CostInputs | None:
    """Return the owner at the interest at which the baseline costs what was published; None for no such."""
    published = subject.workload.published_USD_per_h
    if published is None:
        return None

    from scipy.optimize import brentq  # the parent plans without scipy

    def total(interest: float) -> float:
        owner = with_input(subject.owner, "interest", interest)
        return float(central_parts(subject, subject.baseline, owner).total)

    if not total(0.0) <= published <= total(1.0):
        return None
    interest = float(brentq(lambda one: total(one) - published, 0.0, 1.0, xtol=1e-15))
    return with_input(subject.owner, "interest", interest)


MOST = 10_000
"""Combinations that are calculated at most."""


def checked_combinations(given: Mapping[str, Any]) -> None:
    """Raise `Unavailable` where an input is unknown, has no list of numbers, or there are too many."""
    refuse_unknown(given, (*OWNER, *OF_MACHINE), "combinations")
    for name, values in given.items():
        if not isinstance(values, list) or not values:
            raise Unavailable(f"combinations.{name}={values}: expected a list of numbers")
        for one in values:
            if not isinstance(one, int | float) or not 0 <= one < math.inf:
                raise Unavailable(f"combinations.{name}: {one}; expected numbers of at least 0")
    count = math.prod(len(values) for values in given.values())
    if count > MOST:
        raise Unavailable(f"combinations: {count:,}; expected at most {MOST:,}")


def combination_readings(subject: Subject) -> Iterator[Reading]:
    """Yield both costs and the break-even by combination; inputs of a machine are those of the dearer one."""
    given = subject.workload.combinations
    if not given:
        return
    places = list(product(*given.values()))
    columns: dict[str, Amount] = dict(zip(given, np.array(places, float).T, strict=True))
    owner = {**subject.owner.values, **{name: columns[name] for name in OWNER if name in columns}}
    varied = {name: columns[name] for name in OF_MACHINE if name in columns}
    dearer = {**subject.machine.inputs.values, **varied}
    ours, base = (
        np.broadcast_to(cost_parts(inputs, owner, machine.gpus).total, len(places))
        for inputs, machine in ((dearer, subject.machine), (subject.baseline.inputs.values, subject.baseline))
    )
    for place, dear, cheap in zip(places, ours, base, strict=True):
        method = ", ".join(f"{name}={value:g}" for name, value in zip(given, place, strict=True))
        yield Reading("baseline_rate", "USD/h", float(cheap), Origin.CALCULATED, method)
        yield Reading("cost_rate", "USD/h", float(dear), Origin.CALCULATED, method)
        yield Reading("break_even", "1", float(dear / cheap), Origin.CALCULATED, method)
