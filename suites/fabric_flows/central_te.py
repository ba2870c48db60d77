"""Central traffic engineering: routes computed from the traffic matrix, the heaviest pair of NICs first."""

from __future__ import annotations

from dataclasses import replace

from harness.instruments.network.leaf_spine.routing import RoutingPolicy
from suites.fabric_flows.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with computed routes."""
    return replace(subject, policy=RoutingPolicy("central"))
