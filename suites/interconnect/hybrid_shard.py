"""FSDP2 inside a node, replicas between nodes (HSDP): a node's share of the gradients crosses the link."""

from __future__ import annotations

from harness.records import Unavailable
from suites.interconnect.subject import Subject
from suites.training.techniques import apply_techniques


def apply(subject: Subject) -> Subject:
    """Return the subject sharded within a node; raises `Unavailable` where that shards nothing."""
    if subject.workload.strategy != "fsdp2":
        raise Unavailable("hybrid sharding needs strategy=fsdp2")
    ranks = subject.workload.ranks_per_node
    if ranks < 2:
        raise Unavailable(f"hybrid sharding needs at least 2 ranks per node, not ranks_per_node={ranks}")
    return subject.with_step(apply_techniques(subject.step, [{"fsdp2": {"shard_within": ranks}}]))
