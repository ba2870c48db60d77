"""The fabric suite's types: a collective over a leaf-spine fabric, and how a variant routes it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.instruments.network.leaf_spine.routing import Routed
from suites.fabric.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject(Routed):
    """A workload under one variant's routing."""

    workload: Workload
    seed: int
