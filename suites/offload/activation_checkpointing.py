"""Activation checkpointing (arXiv 1604.06174): of each block its input is kept, the rest made again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.offload.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """Nothing to set."""


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever torch does."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The baseline with every block checkpointed."""
    return replace(subject, plan=replace(subject.plan, activations="recomputed"))
