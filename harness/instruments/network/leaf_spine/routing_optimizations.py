"""What is compared with ECMP on a leaf-spine fabric, as the `apply` of an optimization.

A suite takes one by a module that imports it as `apply`, with its `Settings` if it has any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from harness.instruments.network.leaf_spine.routing import Routed, RoutingPolicy

Subject = TypeVar("Subject", bound=Routed)


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue_pairs`: connections per pair of ranks."""

    queue_pairs: int


def qp_scaling(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with messages split over connections that a hash of addresses cannot tell apart."""
    return replace(subject, policy=RoutingPolicy(queue_pairs=settings.queue_pairs))


def e_ecmp(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with messages split over connections that the hash distinguishes."""
    return replace(subject, policy=RoutingPolicy(hash_ports=True, queue_pairs=settings.queue_pairs))


def path_pinning(subject: Subject) -> Subject:
    """Return the subject with a static route per destination, by its index in its rack."""
    return replace(subject, policy=RoutingPolicy("pinned"))


def central_te(subject: Subject) -> Subject:
    """Return the subject with routes computed from the traffic matrix, the heaviest pair of NICs first."""
    return replace(subject, policy=RoutingPolicy("central"))
