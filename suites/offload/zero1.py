"""deepspeed's ZeRO stage 1: partitions over ranks, and puts nothing anywhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

from harness.records import HostInfo
from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """deepspeed, where it is there."""
    return None if find_spec("deepspeed") else "deepspeed is not installed"


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject under that strategy."""
    return replace(subject, plan=replace(subject.plan, engine="deepspeed", stage=1))
