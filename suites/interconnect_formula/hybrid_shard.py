"""FSDP within a node, replicas across nodes (HSDP): only the gradients of a node cross its link."""

from __future__ import annotations

from dataclasses import replace

from suites.interconnect_formula.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with states sharded within each node."""
    return replace(subject, hybrid_shard=True)
