"""Unified memory: all of the working set in managed memory, of which the device holds what it has room for.

A page that is touched and not there comes from below, and another goes. The working set is parameters,
gradients and both moments: 16 bytes a parameter in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo, Unavailable
from suites.offload import cgroup
from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`ratio`: the working set over the device memory that there is for it."""

    ratio: float


def unavailable(host: HostInfo) -> str | None:
    """Without a GPU it needs a memory cgroup; with one, what `managed_memory` asks for on the rank."""
    if host.device == "cuda":
        return None
    try:
        cgroup.hierarchy()
    except Unavailable as missing:
        return str(missing)
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with its working set managed. Raises `Unavailable` with several ranks, or with a budget."""
    if subject.workload.ranks > 1:
        raise Unavailable("unified_memory: one process's memory is managed, so ranks must be 1")
    if subject.workload.budget_B is not None:
        raise Unavailable("unified_memory: no budget bounds the model, for what does not fit goes below")
    plan = replace(subject.plan, engine="managed", resident=1 / settings.ratio)
    return replace(subject, plan=plan)
