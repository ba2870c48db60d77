"""What the cost suite reports, as readings: inputs, costs of an hour, what breaks even, costs of a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from harness.records import Note, Origin, Reading
from suites.cost.cost_model import Amount, CostParts, cost_parts, usd_per_token
from suites.cost.inputs import with_input
from suites.cost.machine_cost import calibrated_owner, central_parts, drawn_total, listed
from suites.cost.subject import Machine, Subject

FORMULA = "formula"
BAND = "band"
CALIBRATED = "calibrated"

QUANTILES = (0.05, 0.95)
"""The ends of a band: 90 % of the draws lie between them."""


def input_readings(subject: Subject) -> Iterator[Reading | Note]:
    """Yield each input with the ends of its range by its name, and its source as a note."""
    for inputs in (subject.owner, subject.machine.inputs):
        for name, value in inputs.values.items():
            low, high = inputs.ranges.get(name, (value, value))
            for metric, one in (("input", value), ("input_low", low), ("input_high", high)):
                yield Reading(metric, "1", one, Origin.CALCULATED, name)
            yield Note(f"{name}: {inputs.sources[name]}")


def rate_readings(subject: Subject, rate: float, draws: Amount) -> Iterator[Reading]:
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


def ratio_readings(subject: Subject, rate: float, draws: Amount) -> Iterator[Reading]:
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


def token_readings(subject: Subject, rate: float, draws: Amount, tokens_per_s: float) -> Iterator[Reading]:
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
