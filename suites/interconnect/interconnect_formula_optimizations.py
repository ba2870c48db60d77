"""The optimizations of the interconnect_formula suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from harness.bounds import Bounds
from suites.interconnect.interconnect_formula import Subject, validate_states


def gradient_accumulation(
    subject: Subject, gradient_accumulation_steps: Annotated[int, Bounds(at_least=2)]
) -> Subject:
    """Several micro-batches per update: gradients are reduced once, parameters gathered per micro-batch.

    `gradient_accumulation_steps`: micro-batches per update.
    """
    return replace(subject, gradient_accumulation_steps=gradient_accumulation_steps)


def hybrid_shard(subject: Subject) -> Subject:
    """FSDP within a node, replicas across nodes (HSDP): only the gradients of a node cross its link.

    Raises `Unavailable` where they do not fit.
    """
    sharded = replace(subject, hybrid_shard=True)
    validate_states(sharded)
    return sharded


def link(subject: Subject, rate_B_per_s: Annotated[float, Bounds(at_least=1)]) -> Subject:
    """The same training over another link; `link.3200g` is the paper's InfiniBand, eight ports of 400 Gbit/s.

    `rate_B_per_s`: rate of a node's link in each direction.
    """
    return replace(subject, link_B_per_s=rate_B_per_s)


def hybrid_shard_accumulated(
    subject: Subject, gradient_accumulation_steps: Annotated[int, Bounds(at_least=2)]
) -> Subject:
    """Hybrid sharding with several micro-batches per update: gradients alone cross links, once per update.

    Raises `Unavailable` where a node's GPUs cannot hold the states.
    """
    return gradient_accumulation(hybrid_shard(subject), gradient_accumulation_steps)
