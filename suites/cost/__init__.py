"""The cost suite: what a GPU-hour costs its owner, and how much faster a dearer machine has to be.

The baseline is the workload's own machine. Costs are calculated; throughput is what others published.
Uncertain inputs are drawn uniformly and independently from their ranges, those of the owner once for both
machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from harness.instruments.prices import PriceList, price_lists
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.cost.combinations import checked_combinations, combination_readings
from suites.cost.cost_model import (
    Amount,
    CostParts,
    annuity_factor,
    cost_parts,
    solved,
    usd_per_token,
)
from suites.cost.inputs import CostInputs, checked_inputs, drawn, refuse_unknown, with_input
from suites.cost.plausible import refuse_confused_units
from suites.cost.subject import OF_MACHINE, OWNER, Machine, Subject, Workload, machine_of

FORMULA = "formula"
BAND = "band"
CALIBRATED = "calibrated"

QUANTILES = (0.05, 0.95)
"""The ends of a band: 90 % of the draws lie between them."""

ROUNDING = 1e-9
"""Relative rounding of sums of payments."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` where an input lacks its source, or its unit is confused."""
    given = Workload(**workload)
    inputs = (*OWNER, *OF_MACHINE)
    refuse_unknown(given.ranges, inputs, "ranges")
    refuse_unknown(given.sources, inputs, "sources")
    values = {name: getattr(given, name) for name in OWNER}
    owner = checked_inputs(values, given.ranges, given.sources, "the workload")
    machine = machine_of(given, given.machine)
    refuse_confused_units(machine, owner)
    price_lists(given.prices)
    checked_combinations(given.combinations)
    for name, tokens_per_s in given.tokens_per_s.items():
        if not isinstance(tokens_per_s, int | float) or not 0 < tokens_per_s < math.inf:
            raise Unavailable(f"tokens_per_s.{name}={tokens_per_s}: expected tokens/s of one GPU, above 0")
    if given.kind == "pair" and given.machine not in given.tokens_per_s:
        raise Unavailable(f"tokens_per_s.{given.machine}: missing; a pair has the tokens/s of both machines")
    return Subject(given, owner, machine, machine, seed)


def check(subject: Subject) -> None:
    """Compare payments with the loan, and what is repaid with the capital; raises `WrongResult`."""
    values = subject.owner.values
    payment = float(annuity_factor(values["interest"], values["life_years"]))
    whole = int(values["life_years"])
    if whole == values["life_years"]:
        worth = math.fsum(payment / (1 + values["interest"]) ** year for year in range(1, whole + 1))
        if not math.isclose(worth, 1, rel_tol=ROUNDING):
            raise WrongResult(f"payments over {whole} years are worth {worth:.9g} of the loan; expected 1")
    parts = central_parts(subject, subject.machine)
    if not all(math.isfinite(float(part)) and float(part) >= 0 for part in parts):
        raise WrongResult(f"a part of the cost is negative or not finite: {parts}")
    machine, gpus = subject.machine.inputs.values, subject.machine.gpus
    capital = (machine["server_USD"] + machine["network_USD"]) * values["price_level"] / gpus
    hours = values["life_years"] * 8760 * machine["used_share"]
    repaid = (float(parts.server) + float(parts.network)) * hours
    if not math.isclose(repaid, capital, rel_tol=ROUNDING):
        raise WrongResult(f"${repaid:.9g} are repaid per GPU, of ${capital:.9g}")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require, and what a pair was measured on."""
    given, machine = subject.workload, subject.machine
    return {
        "device": "cuda",
        "device_name": machine.device_name,
        "machine": machine.name,
        "precision": given.precision,
        "gpus": " and ".join(str(one) for one in given.gpus_of_run.values()),
        "alike": "yes" if given.alike else "no",
        "source": given.source,
    }


def central_parts(subject: Subject, machine: Machine, owner: CostInputs | None = None) -> CostParts:
    """Return the parts of a GPU-hour's cost in dollars, every input at its own value."""
    return cost_parts(machine.inputs.values, (owner or subject.owner).values, machine.gpus)


def drawn_total(subject: Subject, machine: Machine) -> Amount:
    """Return dollars per GPU-hour of each draw (D,)."""
    count = subject.workload.draws
    owner = drawn(subject.owner, count, subject.seed, "owner")
    own = drawn(machine.inputs, count, subject.seed, machine.name)
    return cost_parts(own, owner, machine.gpus).total


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Calculate the cost of a GPU-hour with its band, and of a token where a throughput was published."""
    rate, draws = float(central_parts(subject, subject.machine).total), drawn_total(subject, subject.machine)
    yield from _inputs(subject)
    yield from _rates(subject, rate, draws)
    if subject.machine != subject.baseline:
        yield from _ratios(subject, rate, draws)
        yield from combination_readings(subject)
    tokens_per_s = throughput(subject, subject.machine)
    if tokens_per_s is not None:
        yield from _tokens(subject, rate, draws, tokens_per_s)


def _inputs(subject: Subject) -> Iterator[Reading | Note]:
    """Yield each input with the ends of its range by its name, and its source as a note."""
    for inputs in (subject.owner, subject.machine.inputs):
        for name, value in inputs.values.items():
            low, high = inputs.ranges.get(name, (value, value))
            for metric, one in (("input", value), ("input_low", low), ("input_high", high)):
                yield Reading(metric, "1", one, Origin.CALCULATED, name)
            yield Note(f"{name}: {inputs.sources[name]}")


def _rates(subject: Subject, rate: float, draws: Amount) -> Iterator[Reading]:
    """Yield the cost of a GPU-hour, its parts, its band, and the published prices."""
    parts = central_parts(subject, subject.machine)
    yield _rate("cost_rate", rate, FORMULA)
    for name, part in zip(CostParts._fields, parts, strict=True):
        yield _rate(f"cost_rate/{name}", float(part), FORMULA)
    for end in np.quantile(draws, QUANTILES):
        yield _rate("cost_rate", float(end), BAND)
    for one, usd_per_h in listed(subject, subject.machine):
        yield Reading("cost_rate", "USD/h", usd_per_h, Origin.PUBLISHED, one.name)
    if owner := calibrated_owner(subject):
        yield _rate("cost_rate", float(central_parts(subject, subject.machine, owner).total), CALIBRATED)
        yield Reading("interest", "1", owner.values["interest"], Origin.CALCULATED, CALIBRATED)


def _rate(metric: str, usd_per_h: float, method: str) -> Reading:
    return Reading(metric, "USD/h", usd_per_h, Origin.CALCULATED, method)


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

    def total(interest: float) -> float:
        owner = with_input(subject.owner, "interest", interest)
        return float(central_parts(subject, subject.baseline, owner).total)

    interest = solved(total, published, 0.0, 1.0)
    return None if interest is None else with_input(subject.owner, "interest", interest)


def _ratios(subject: Subject, rate: float, draws: Amount) -> Iterator[Reading]:
    """Yield cost per owned hour over the baseline's, the speed-up that breaks even, and what moves it."""
    base = float(central_parts(subject, subject.baseline).total)
    base_draws = drawn_total(subject, subject.baseline)
    used = subject.machine.inputs.values["used_share"] / subject.baseline.inputs.values["used_share"]
    yield Reading("cost_ratio", "1", rate * used / base, Origin.CALCULATED, FORMULA)
    yield Reading("break_even", "1", rate / base, Origin.CALCULATED, FORMULA)
    for end in np.quantile(draws * used / base_draws, QUANTILES):
        yield Reading("cost_ratio", "1", float(end), Origin.CALCULATED, BAND)
    for end in np.quantile(draws / base_draws, QUANTILES):
        yield Reading("break_even", "1", float(end), Origin.CALCULATED, BAND)
    if owner := calibrated_owner(subject):
        ours, theirs = (
            float(central_parts(subject, one, owner).total) for one in (subject.machine, subject.baseline)
        )
        yield Reading("break_even", "1", ours / theirs, Origin.CALCULATED, CALIBRATED)
    of_base = {one.name: usd for one, usd in listed(subject, subject.baseline)}
    for one, usd_per_h in listed(subject, subject.machine):
        if one.name in of_base:
            ratio = usd_per_h / of_base[one.name]
            yield Reading("break_even", "1", ratio, Origin.PUBLISHED, one.name)
    yield from _sensitivity(subject)


def _sensitivity(subject: Subject) -> Iterator[Reading]:
    """Yield the break-even with one input at each end of its range, the others at their values."""
    named = [(name, ends, "owner") for name, ends in subject.owner.ranges.items()]
    for machine in (subject.baseline, subject.machine):
        named += [(name, ends, machine.name) for name, ends in machine.inputs.ranges.items()]
    for name, ends, whose in named:
        for metric, value in zip(("break_even_low", "break_even_high"), ends, strict=True):
            owner = with_input(subject.owner, name, value)
            ours, base = (
                float(cost_parts(_moved(one, whose, name, value), owner.values, one.gpus).total)
                for one in (subject.machine, subject.baseline)
            )
            method = name if whose == "owner" else f"{name} of {whose}"
            yield Reading(metric, "1", ours / base, Origin.CALCULATED, method)


def _moved(machine: Machine, whose: str, name: str, value: float) -> Mapping[str, float]:
    return {**machine.inputs.values, name: value} if machine.name == whose else machine.inputs.values


def throughput(subject: Subject, machine: Machine) -> float | None:
    """Return tokens/s of one GPU: as published, or by the published MFU; None where neither is known."""
    given = subject.workload
    if machine.name in given.tokens_per_s:
        return float(given.tokens_per_s[machine.name])
    if given.mfu and given.peak_FLOP_per_s and given.model_FLOP_per_token and machine == subject.baseline:
        return given.mfu * given.peak_FLOP_per_s / given.model_FLOP_per_token
    return None


def _tokens(subject: Subject, rate: float, draws: Amount, tokens_per_s: float) -> Iterator[Reading]:
    """Yield throughput, and the cost of a token and of a run; on a dearer machine also what it gains."""
    given = subject.workload
    origin = Origin.PUBLISHED if subject.machine.name in given.tokens_per_s else Origin.CALCULATED
    yield Reading("tokens_per_s_per_device", "token/s", tokens_per_s, origin)
    costs = {FORMULA: rate} | {one.name: usd for one, usd in listed(subject, subject.machine)}
    for method, usd_per_h in costs.items():
        per_token = float(usd_per_token(usd_per_h, tokens_per_s))
        yield Reading("cost_per_token", "USD/token", per_token, Origin.CALCULATED, method)
        yield Reading("run_cost", "USD", per_token * given.run_tokens, Origin.CALCULATED, method)
    base_tokens_per_s = throughput(subject, subject.baseline)
    if subject.machine == subject.baseline or base_tokens_per_s is None:
        return
    speed_up = tokens_per_s / base_tokens_per_s
    yield Reading("speedup", "1", speed_up, origin)
    shares = np.asarray(draws / drawn_total(subject, subject.baseline)) < speed_up
    yield Reading("share_that_pays", "1", float(np.mean(shares)), Origin.CALCULATED)
