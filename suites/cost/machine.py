"""A dearer machine in place of the baseline's, at the same owner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from suites.cost.plausible import refuse_confused_units
from suites.cost.subject import Subject, machine_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The machine, by its unit of sale: see the fields of `Workload` with the same names."""

    machine: str
    device_name: str
    gpus: int
    server_USD: float
    network_USD: float
    power_kW: float
    used_share: float = 1.0
    ranges: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject on that machine; raises `Unavailable` for inputs that cannot be meant."""
    machine = machine_of(settings, settings.machine)
    refuse_confused_units(machine, subject.owner)
    return replace(subject, machine=machine)
