"""FSDP inside a node, copies between nodes (HSDP): parameters are gathered without the slow link, and only a
node's share of the gradients crosses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo, Unavailable
from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set: shards are a node's."""


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever FSDP2 does."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject sharded within a node; `Unavailable` where that shards nothing."""
    if subject.plan.strategy != "fsdp2":
        raise Unavailable("hybrid sharding is FSDP2's: the strategy must be fsdp2")
    ranks = subject.workload.ranks_per_node
    if ranks < 2:
        raise Unavailable(
            "one rank a node has nobody in its node to shard with: ranks_per_node must be 2 at least"
        )
    return replace(subject, plan=replace(subject.plan, shard_within=ranks))
