"""Unified memory: all of the working set in managed memory, of which the device keeps what fits.

A touched page that is missing comes from the tier below, and another is evicted. The working set is
parameters, gradients and both moments: 16 bytes per parameter in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds
from harness.instruments.control_group import group_places
from harness.records import HostInfo, Unavailable
from suites.offload.cgroup import MEMORY

if TYPE_CHECKING:
    from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`ratio`: the working set over the device memory available for it."""

    ratio: Annotated[float, Bounds(at_least=0.1)]


def unavailable(host: HostInfo) -> str | None:
    """Return what is missing: a memory cgroup without a GPU; with one, the rank checks."""
    if host.device == "cuda":
        return None
    try:
        group_places(MEMORY)
    except Unavailable as missing:
        return str(missing)
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with its working set in managed memory; the only rank needs no DDP."""
    from suites.offload.subject import Managed
    from suites.training.techniques import build_step

    alone = [[name, values] for name, values in subject.step.techniques if name != "ddp"]
    step = build_step(subject.workload.training, alone, subject.seed)
    return replace(subject, step=step, managed=Managed(1 / settings.ratio))
