"""FSDP within a node, replicas across nodes (HSDP): only the gradients of a node cross its link."""

from __future__ import annotations

from dataclasses import replace

from harness.records import Unavailable
from suites.interconnect_formula.subject import Subject

STATE_B = 16
"""Bytes per parameter in mixed precision with Adam: arXiv 1910.02054, section 3.1."""

GPU_B = 80e9
"""Memory of an H100, by its data sheet."""


def apply(subject: Subject) -> Subject:
    """Return the subject with states sharded within each node; raises `Unavailable` where they do not fit."""
    ranks = subject.workload.ranks_per_node
    share_B = STATE_B * subject.workload.parameters / ranks
    if share_B > GPU_B:
        raise Unavailable(
            f"parameters={subject.workload.parameters:g}: {share_B / 1e9:.0f} GB of states for each of a "
            f"node's {ranks} GPUs, which have {GPU_B / 1e9:.0f} GB"
        )
    return replace(subject, hybrid_shard=True)
