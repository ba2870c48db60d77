"""The cost suite's types: an owner, two machines, and what others published about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.records import Unavailable
from suites.cost.inputs import CostInputs, checked_inputs
from suites.cost.workload import Workload

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
