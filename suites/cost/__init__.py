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
from suites.cost.combinations import checked_combinations, combination_readings
from suites.cost.cost_model import annuity_factor
from suites.cost.inputs import checked_inputs, refuse_unknown
from suites.cost.machine_cost import central_parts, drawn_total
from suites.cost.plausible import refuse_confused_units
from suites.cost.readings import input_readings, rate_readings, ratio_readings, throughput, token_readings
from suites.cost.subject import OF_MACHINE, OWNER, Subject, Workload, machine_of

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


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Calculate the cost of a GPU-hour with its band, and of a token where a throughput was published."""
    rate, draws = float(central_parts(subject, subject.machine).total), drawn_total(subject, subject.machine)
    yield from input_readings(subject)
    yield from rate_readings(subject, rate, draws)
    if subject.machine != subject.baseline:
        yield from ratio_readings(subject, rate, draws)
        yield from combination_readings(subject)
    tokens_per_s = throughput(subject, subject.machine)
    if tokens_per_s is not None:
        yield from token_readings(subject, rate, draws, tokens_per_s)
