"""E-ECMP: messages split over several connections that the hash distinguishes (Meta, SIGCOMM 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.instruments.network.leaf_spine.routing import RoutingPolicy
from suites.fabric_flows.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue_pairs`: connections per pair of ranks."""

    queue_pairs: int


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with split messages, each part routed by itself."""
    return replace(subject, policy=RoutingPolicy(hash_ports=True, queue_pairs=settings.queue_pairs))
