"""FSDP within a node, replicas across nodes (HSDP): only the gradients of a node cross its link."""

from __future__ import annotations

from dataclasses import replace

from suites.interconnect_formula.subject import Subject, validate_states


def apply(subject: Subject) -> Subject:
    """Return the subject with states sharded within each node; raises `Unavailable` where they do not fit."""
    sharded = replace(subject, hybrid_shard=True)
    validate_states(sharded)
    return sharded
