"""The cost suite: what a GPU-hour costs its owner, and how much faster a dearer machine has to be.

The baseline is the workload's own machine. Costs are calculated; throughput is what others published.
Uncertain inputs are drawn uniformly and independently from their ranges, those of the owner once for both
machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from harness.instruments.prices import price_lists
from harness.records import Json, Note, Reading, Unavailable, WrongResult
from suites.cost.cost_model import annuity_factor, checked_inputs, refuse_unknown
from suites.cost.plausible import refuse_confused_units, refuse_wrong_throughput
from suites.cost.readings import (
    input_readings,
    listed_ratios,
    listed_readings,
    rate_readings,
    ratio_readings,
    throughput_readings,
)
from suites.cost.subject import (
    OF_MACHINE,
    OF_PRICE,
    OWNER,
    Subject,
    central_parts,
    checked_combinations,
    combination_readings,
    drawn_total,
    machine_of,
)
from suites.cost.workload import Workload

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
    if machine.has_formula:
        refuse_confused_units(machine, owner)
    elif given.kind != "pair":
        raise Unavailable(f"{OF_PRICE[0]}: missing; only a pair may leave out {', '.join(OF_PRICE)}")
    price_lists(given.prices)
    checked_combinations(given.combinations)
    refuse_wrong_throughput(given)
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
    if not subject.machine.has_formula:
        return
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
        "sample": given.sample,
        "gpus": " and ".join(str(one) for one in given.gpus_of_run.values()),
        "alike": "yes" if given.alike else "no",
        "source": given.source,
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
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
    rate, draws = float(central_parts(subject, subject.machine).total), drawn_total(subject, subject.machine)
    yield from input_readings(subject)
    yield from rate_readings(subject, rate, draws)
    if is_dearer:
        yield from ratio_readings(subject, rate, draws)
        yield from combination_readings(subject)
    yield from throughput_readings(subject, rate, draws)
