"""A dearer machine in place of the baseline's, at the same owner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from harness.bounds import Bounds, PositiveInt
from suites.cost.cost_model import Subject, machine_of, refuse_confused_units


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The machine, by its unit of sale: see the fields of `Workload` with the same names."""

    machine: str
    device_name: str
    gpus: PositiveInt
    server_USD: Annotated[float, Bounds(above=0)]
    network_USD: Annotated[float, Bounds(at_least=0)]
    power_kW: Annotated[float, Bounds(above=0)]
    used_share: Annotated[float, Bounds(above=0, at_most=1)] = 1.0
    ranges: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject on that machine; raises `Unavailable` for inputs that cannot be meant."""
    machine = machine_of(settings, settings.machine)
    refuse_confused_units(machine, subject.owner)
    return replace(subject, machine=machine)
