"""The optimizations of the interconnect suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable

if TYPE_CHECKING:
    from suites.interconnect.training_cluster import Subject


def bf16_reduce(subject: Subject) -> Subject:
    """Gradients in bf16 on the wire: torch's bf16_compress_hook for DDP, FSDP2's reduce_dtype.

    Raises `Unavailable` for deepspeed.
    """
    strategy = subject.workload.strategy
    if strategy == "zero3":
        raise Unavailable("deepspeed reduces gradients in the parameters' type; use strategy ddp or fsdp2")
    return subject.with_techniques([{strategy: {"reduce_dtype": "bf16"}}])


def hybrid_shard(subject: Subject) -> Subject:
    """FSDP2 inside a node, replicas between nodes (HSDP): a node's share of the gradients crosses the link.

    Raises `Unavailable` where that shards nothing.
    """
    if subject.workload.strategy != "fsdp2":
        raise Unavailable("hybrid sharding needs strategy=fsdp2")
    ranks = subject.workload.ranks_per_node
    if ranks < 2:
        raise Unavailable(f"hybrid sharding needs at least 2 ranks per node, not ranks_per_node={ranks}")
    return subject.with_techniques([{"fsdp2": {"shard_within": ranks}}])


def link(subject: Subject, rate_B_per_s: Annotated[float, Bounds(at_least=1)]) -> Subject:
    """The same training over another link; `link.3200g` is the paper's InfiniBand, eight ports of 400 Gbit/s.

    `rate_B_per_s`: of a node's link in each direction, at the scale of the paper's run.
    """
    return replace(subject, link_B_per_s=rate_B_per_s)


def overlap(subject: Subject, buckets: PositiveInt) -> Subject:
    """More communication behind computation: smaller DDP buckets; FSDP2 gathers a block ahead.

    `buckets`: DDP buckets per model. Raises `Unavailable` for deepspeed.
    """
    strategy = subject.workload.strategy
    changes = {"ddp": {"buckets": buckets}, "fsdp2": {"forward_prefetch": True}}
    if strategy not in changes:
        raise Unavailable("deepspeed already prefetches and reduces in buckets; use strategy ddp or fsdp2")
    return subject.with_techniques([{strategy: changes[strategy]}])
