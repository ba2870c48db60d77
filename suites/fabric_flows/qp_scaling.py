"""Each message split over several connections, which a hash of addresses cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.instruments.network.leaf_spine.routing import RoutingPolicy
from suites.fabric_flows.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue_pairs`: connections per pair of ranks."""

    queue_pairs: int


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with split messages."""
    return replace(subject, policy=RoutingPolicy(queue_pairs=settings.queue_pairs))
