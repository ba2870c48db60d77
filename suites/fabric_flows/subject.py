"""The fabric_flows suite's types: a collective over a leaf-spine fabric, and how a variant routes it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.instruments.network.routing import Routed
from suites.fabric_flows.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject(Routed):
    """A workload under one variant's routing."""

    workload: Workload
    seed: int
