"""FSDP within a node, replicas across nodes (HSDP): only the gradients of a node cross its link."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.interconnect_formula.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """No settings: a shard is a node's."""


def unavailable(host: HostInfo) -> str | None:
    """Return None: a formula runs everywhere."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with states sharded within each node."""
    return replace(subject, hybrid_shard=True)
