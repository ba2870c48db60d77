"""What a GPU-hour of a machine costs: every input at its value, drawn, as published, or calibrated on it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.instruments.prices import PriceList, price_lists
from suites.cost.cost_model import Amount, CostParts, cost_parts, solved
from suites.cost.inputs import CostInputs, drawn, with_input
from suites.cost.subject import Machine, Subject


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

    def total(interest: float) -> float:
        owner = with_input(subject.owner, "interest", interest)
        return float(central_parts(subject, subject.baseline, owner).total)

    interest = solved(total, published, 0.0, 1.0)
    return None if interest is None else with_input(subject.owner, "interest", interest)
