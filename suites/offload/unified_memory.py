"""Unified memory: all of the working set in managed memory, of which the device keeps what fits.

A touched page that is missing comes from the tier below, and another is evicted. The working set is
parameters, gradients and both moments: 16 bytes per parameter in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo, Unavailable
from suites.offload import cgroup
from suites.offload.subject import Managed, Subject
from suites.training.techniques import build_step


@dataclass(frozen=True, slots=True)
class Settings:
    """`ratio`: the working set over the device memory available for it."""

    ratio: float


def unavailable(host: HostInfo) -> str | None:
    """Return what is missing: a memory cgroup without a GPU; with one, the rank checks `managed_memory`."""
    if host.device == "cuda":
        return None
    try:
        cgroup.hierarchy()
    except Unavailable as missing:
        return str(missing)
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with its working set managed; raises `Unavailable` for several ranks or a budget."""
    workload = subject.workload
    if workload.dp_size > 1:
        raise Unavailable("unified_memory: managed memory needs a single process: dp_size must be 1")
    if workload.device_memory_budget_B is not None:
        raise Unavailable("unified_memory: no budget bounds the model, since what does not fit goes below")
    alone = [[name, values] for name, values in subject.step.techniques if name != "ddp"]
    step = build_step(workload.training, alone, subject.seed)
    return replace(subject, step=step, managed=Managed(1 / settings.ratio))
