"""A static route per destination: the index of the host in its rack decides which spine leads to it."""

from __future__ import annotations

from dataclasses import replace

from harness.instruments.network.leaf_spine.routing import RoutingPolicy
from suites.fabric_flows.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with pinned routes."""
    return replace(subject, policy=RoutingPolicy("pinned"))
