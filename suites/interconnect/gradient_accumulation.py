"""Several batches to one update: gradients cross the network once for all of them.

It changes the mathematics: updates are fewer, each from more tokens. deepspeed's stage 3 reduces with every
batch all the same, and where parameters are sharded, they are gathered for every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.records import HostInfo
from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`batches`: to one update."""

    batches: int


def unavailable(host: HostInfo) -> str | None:
    """It runs wherever the strategies do."""
    return None


def apply(subject: Subject, settings: Settings) -> Subject:
    """The subject with so many batches to an update; a step is one batch still."""
    return replace(subject, plan=replace(subject.plan, accumulate=settings.batches))
