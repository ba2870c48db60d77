"""The cost suite: what a GPU-hour costs its owner, and how much faster a dearer machine has to be.

The baseline is the workload's own machine. Costs are calculated; throughput is what others published.
Uncertain inputs are drawn uniformly and independently from their ranges, those of the owner once for both
machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from harness.instruments.prices import price_lists
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.cost import cost_model
from suites.cost.workload import Workload

FORMULA = "formula"
BAND = "band"
CALIBRATED = "calibrated"

QUANTILES = (0.05, 0.95)
"""The ends of a band: 90 % of the draws lie between them."""


def input_readings(subject: cost_model.Subject) -> Iterator[Reading | Note]:
    """Yield each input with the ends of its range by its name, and its source as a note."""
    for inputs in (subject.owner, subject.machine.inputs):
        for name, value in inputs.values.items():
            low, high = inputs.ranges.get(name, (value, value))
            for metric, one in (("input", value), ("input_low", low), ("input_high", high)):
                yield Reading(metric, "1", one, Origin.CALCULATED, name)
            yield Note(f"{name}: {inputs.sources[name]}")


def rate_readings(subject: cost_model.Subject, rate: float, draws: cost_model.Amount) -> Iterator[Reading]:
    """Yield the cost of a GPU-hour, its parts, its band, and the published prices."""
    parts = cost_model.central_parts(subject, subject.machine)
    yield _rate("cost_rate", rate, FORMULA)
    for name, part in zip(cost_model.CostParts._fields, parts, strict=True):
        yield _rate(f"cost_rate/{name}", float(part), FORMULA)
    for end in np.quantile(draws, QUANTILES):
        yield _rate("cost_rate", float(end), BAND)
    yield from listed_readings(subject)
    if owner := cost_model.calibrated_owner(subject):
        calibrated = cost_model.central_parts(subject, subject.machine, owner).total
        yield _rate("cost_rate", float(calibrated), CALIBRATED)
        yield Reading("interest", "1", owner.values["interest"], Origin.CALCULATED, CALIBRATED)


def listed_readings(subject: cost_model.Subject) -> Iterator[Reading]:
    """Yield the published prices of a GPU-hour."""
    for one, usd_per_h in cost_model.listed(subject, subject.machine):
        yield Reading("cost_rate", "USD/h", usd_per_h, Origin.PUBLISHED, one.name)


def _rate(metric: str, usd_per_h: float, method: str) -> Reading:
    return Reading(metric, "USD/h", usd_per_h, Origin.CALCULATED, method)


def ratio_readings(subject: cost_model.Subject, rate: float, draws: cost_model.Amount) -> Iterator[Reading]:
    """Yield cost per owned hour over the baseline's, the speed-up that breaks even, and what moves it."""
    base = float(cost_model.central_parts(subject, subject.baseline).total)
    base_draws = cost_model.drawn_total(subject, subject.baseline)
    used = subject.machine.inputs.values["used_share"] / subject.baseline.inputs.values["used_share"]
    yield Reading("cost_ratio", "1", rate * used / base, Origin.CALCULATED, FORMULA)
    yield Reading("break_even", "1", rate / base, Origin.CALCULATED, FORMULA)
    for end in np.quantile(draws * used / base_draws, QUANTILES):
        yield Reading("cost_ratio", "1", float(end), Origin.CALCULATED, BAND)
    for end in np.quantile(draws / base_draws, QUANTILES):
        yield Reading("break_even", "1", float(end), Origin.CALCULATED, BAND)
    if owner := cost_model.calibrated_owner(subject):
        ours, theirs = (
            float(cost_model.central_parts(subject, one, owner).total)
            for one in (subject.machine, subject.baseline)
        )
        yield Reading("break_even", "1", ours / theirs, Origin.CALCULATED, CALIBRATED)
    yield from listed_ratios(subject)
    yield from _sensitivity(subject)


def listed_ratios(subject: cost_model.Subject) -> Iterator[Reading]:
    """Yield the speed-up that breaks even by each price list that has both machines."""
    of_base = {one.name: usd for one, usd in cost_model.listed(subject, subject.baseline)}
    for one, usd_per_h in cost_model.listed(subject, subject.machine):
        if one.name in of_base:
            ratio = usd_per_h / of_base[one.name]
            yield Reading("break_even", "1", ratio, Origin.PUBLISHED, one.name)


def _sensitivity(subject: cost_model.Subject) -> Iterator[Reading]:
    """Yield the break-even with one input at each end of its range, the others at their values."""
    named = [(name, ends, "owner") for name, ends in subject.owner.ranges.items()]
    for machine in (subject.baseline, subject.machine):
        named += [(name, ends, machine.name) for name, ends in machine.inputs.ranges.items()]
    for name, ends, whose in named:
        for metric, value in zip(("break_even_low", "break_even_high"), ends, strict=True):
            owner = cost_model.with_input(subject.owner, name, value)
            ours, base = (
                float(cost_model.cost_parts(_moved(one, whose, name, value), owner.values, one.gpus).total)
                for one in (subject.machine, subject.baseline)
            )
            method = name if whose == "owner" else f"{name} of {whose}"
            yield Reading(metric, "1", ours / base, Origin.CALCULATED, method)


def _moved(machine: cost_model.Machine, whose: str, name: str, value: float) -> Mapping[str, float]:
    return {**machine.inputs.values, name: value} if machine.name == whose else machine.inputs.values


def throughput(subject: cost_model.Subject, machine: cost_model.Machine) -> float | None:
    """Return tokens/s or samples/s of one GPU as published, or tokens/s by the published MFU; or None."""
    given = subject.workload
    published = given.samples_per_s or given.tokens_per_s
    if machine.name in published:
        return float(published[machine.name])
    if given.mfu and given.peak_FLOP_per_s and given.model_FLOP_per_token and machine == subject.baseline:
        return given.mfu * given.peak_FLOP_per_s / given.model_FLOP_per_token
    return None


def throughput_readings(
    subject: cost_model.Subject, rate: float | None = None, draws: cost_model.Amount | None = None
) -> Iterator[Reading]:
    """Yield throughput, the cost of a token and a run, or of a sample, and what a dearer machine gains.

    `rate` and `draws`: dollars per GPU-hour by the formula; None where it was not calculated.
    """
    given = subject.workload
    per_s = throughput(subject, subject.machine)
    if per_s is None:
        return
    unit = "sample" if given.samples_per_s else "token"
    is_published = subject.machine.name in (given.samples_per_s or given.tokens_per_s)
    origin = Origin.PUBLISHED if is_published else Origin.CALCULATED
    yield Reading(f"{unit}s_per_s_per_device", f"{unit}/s", per_s, origin)
    costs = {one.name: usd for one, usd in cost_model.listed(subject, subject.machine)}
    for method, usd_per_h in ({FORMULA: rate, **costs} if rate is not None else costs).items():
        cost = usd_per_h / (per_s * cost_model.SECONDS_PER_HOUR)
        yield Reading(f"cost_per_{unit}", f"USD/{unit}", cost, Origin.CALCULATED, method)
        if unit == "token":
            yield Reading("run_cost", "USD", cost * given.run_tokens, Origin.CALCULATED, method)
    base_per_s = throughput(subject, subject.baseline)
    if subject.machine == subject.baseline or base_per_s is None:
        return
    speed_up = per_s / base_per_s
    yield Reading("speedup", "1", speed_up, origin)
    if draws is not None:
        shares = np.asarray(draws / cost_model.drawn_total(subject, subject.baseline)) < speed_up
        yield Reading("share_that_pays", "1", float(np.mean(shares)), Origin.CALCULATED)


ROUNDING = 1e-9
"""Relative rounding of sums of payments."""


def build(workload: Json, seed: int) -> cost_model.Subject:
    """Return the baseline; raises `Unavailable` where an input lacks its source, or its unit is confused."""
    given = Workload(**workload)
    inputs = (*cost_model.OWNER, *cost_model.OF_MACHINE)
    cost_model.refuse_unknown(given.ranges, inputs, "ranges")
    cost_model.refuse_unknown(given.sources, inputs, "sources")
    values = {name: getattr(given, name) for name in cost_model.OWNER}
    owner = cost_model.checked_inputs(values, given.ranges, given.sources, "the workload")
    machine = cost_model.machine_of(given, given.machine)
    if machine.has_formula:
        cost_model.refuse_confused_units(machine, owner)
    elif given.kind != "pair":
        raise Unavailable(
            f"{cost_model.OF_PRICE[0]}: missing; only a pair may leave out {', '.join(cost_model.OF_PRICE)}"
        )
    price_lists(given.prices)
    cost_model.checked_combinations(given.combinations)
    cost_model.refuse_wrong_throughput(given)
    return cost_model.Subject(given, owner, machine, machine, seed)


def check(subject: cost_model.Subject) -> None:
    """Compare payments with the loan, and what is repaid with the capital; raises `WrongResult`."""
    values = subject.owner.values
    payment = float(cost_model.annuity_factor(values["interest"], values["life_years"]))
    whole = int(values["life_years"])
    if whole == values["life_years"]:
        worth = math.fsum(payment / (1 + values["interest"]) ** year for year in range(1, whole + 1))
        if not math.isclose(worth, 1, rel_tol=ROUNDING):
            raise WrongResult(f"payments over {whole} years are worth {worth:.9g} of the loan; expected 1")
    if not subject.machine.has_formula:
        return
    parts = cost_model.central_parts(subject, subject.machine)
    if not all(math.isfinite(float(part)) and float(part) >= 0 for part in parts):
        raise WrongResult(f"a part of the cost is negative or not finite: {parts}")
    machine, gpus = subject.machine.inputs.values, subject.machine.gpus
    capital = (machine["server_USD"] + machine["network_USD"]) * values["price_level"] / gpus
    hours = values["life_years"] * 8760 * machine["used_share"]
    repaid = (float(parts.server) + float(parts.network)) * hours
    if not math.isclose(repaid, capital, rel_tol=ROUNDING):
        raise WrongResult(f"${repaid:.9g} are repaid per GPU, of ${capital:.9g}")


def conditions(subject: cost_model.Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require, and what a pair was measured on."""
    given, machine = subject.workload, subject.machine
    return {
        "device": "cuda",
        "device_name": machine.device_name,
        "machine": machine.name,
        "precision": given.precision,
        "sample": given.sample,
        "gpus": " and ".join(str(one) for one in given.gpus_of_run.values()),
        "alike": "yes" if given.alike else "no",
        "source": given.source,
    }


def sample(subject: cost_model.Subject) -> Iterator[Reading | Note]:
    """Calculate the cost of a GPU-hour with its band, and of a token or sample by a published throughput.

    Where only price lists have the baseline's cost, they alone are used, for both machines.
    """
    is_dearer = subject.machine != subject.baseline
    if not subject.baseline.has_formula:
        yield from listed_readings(subject)
        if is_dearer:
            yield from listed_ratios(subject)
        yield from throughput_readings(subject)
        return
    rate, draws = (
        float(cost_model.central_parts(subject, subject.machine).total),
        cost_model.drawn_total(subject, subject.machine),
    )
    yield from input_readings(subject)
    yield from rate_readings(subject, rate, draws)
    if is_dearer:
        yield from ratio_readings(subject, rate, draws)
        yield from cost_model.combination_readings(subject)
    yield from throughput_readings(subject, rate, draws)
