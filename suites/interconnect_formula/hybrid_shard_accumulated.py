"""Hybrid sharding with several micro-batches per update: gradients alone cross links, once per update."""

from __future__ import annotations

from suites.interconnect_formula import gradient_accumulation, hybrid_shard
from suites.interconnect_formula.gradient_accumulation import Settings
from suites.interconnect_formula.subject import Subject

__all__ = ["Settings", "apply"]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with both; raises `Unavailable` where a node's GPUs cannot hold the states."""
    return gradient_accumulation.apply(hybrid_shard.apply(subject), settings)
