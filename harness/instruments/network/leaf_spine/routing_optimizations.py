"""What is compared with ECMP on a leaf-spine fabric, as the `apply` of an optimization.

A suite takes one by a module that imports it as `apply`, with its `Settings` if it has any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from harness.bounds import Bounds
from harness.instruments.network.leaf_spine.routing import Routed, RoutingPolicy
from harness.records import Unavailable

Subject = TypeVar("Subject", bound=Routed)


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue_pairs`: of each pair of ranks. `split`: each message takes all of them, else one in turn."""

    queue_pairs: Annotated[int, Bounds(at_least=1, at_most=64)]
    split: bool = False


def qp_scaling(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with connections that a hash of addresses cannot tell apart."""
    return replace(subject, policy=policy_of(settings, hash_ports=False))


def e_ecmp(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with connections that the hash distinguishes."""
    return replace(subject, policy=policy_of(settings, hash_ports=True))


def policy_of(settings: Settings, hash_ports: bool) -> RoutingPolicy:
    """Return the policy of so many queue pairs; raises `Unavailable` for turns of unequal queue pairs."""
    policy = RoutingPolicy(hash_ports=hash_ports, queue_pairs=settings.queue_pairs, split=settings.split)
    try:
        policy.turns("allreduce")
    except ValueError as error:
        raise Unavailable(str(error)) from None
    return policy


def path_pinning(subject: Subject) -> Subject:
    """Return the subject with a static route per destination, by its index in its rack."""
    return replace(subject, policy=RoutingPolicy("pinned"))


def central_te(subject: Subject) -> Subject:
    """Return the subject with routes computed from the traffic matrix, the heaviest pair of NICs first."""
    return replace(subject, policy=RoutingPolicy("central"))
