"""The optimizations of the suites profiling and clock_speed as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds, PositiveInt

if TYPE_CHECKING:
    from suites.profiling.recorder import Subject
    from suites.profiling.speed_model import Subject as PacedStep


ChosenRank = Annotated[int, Bounds(at_least=0, at_most=7)] | None
CoreShare = Annotated[float, Bounds(above=0, below=1)]
SleepSeconds = Annotated[float, Bounds(above=0, at_most=1)]


def slow_link(subject: Subject, rate_B_per_s: Annotated[float, Bounds(at_least=1e5)] = 300e6) -> Subject:
    """A slower link between the ranks.

    `rate_B_per_s`: of the links, each way.
    """
    return subject.with_injection(kind="slow_link", rank=-1, rate_B_per_s=rate_B_per_s)


def competing_load(subject: Subject, rank: ChosenRank = None, share: CoreShare = 0.25) -> Subject:
    """Another process on the core of one rank, which takes a known share of its time.

    `rank`: None: the last. `share`: of the core, for the other process.
    """
    return subject.with_injection(kind="competing_load", rank=rank, share=share)


def cpu_quota(subject: Subject, rank: ChosenRank = None, share: CoreShare = 0.75) -> Subject:
    """A quota on the processor time of one rank, by the kernel's bandwidth control.

    `rank`: None: the last. `share`: of a core, for the rank.
    """
    return subject.with_injection(kind="cpu_quota", rank=rank, share=share)


def data_wait(subject: Subject, rank: ChosenRank = None, seconds: SleepSeconds = 0.02) -> Subject:
    """A wait in the loader before each batch of one rank, as by a slow source of data.

    `rank`: None: the last. `seconds`: before each batch.
    """
    return subject.with_injection(kind="data_wait", rank=rank, seconds=seconds)


def launch_sleep(
    subject: Subject, rank: ChosenRank = None, seconds: SleepSeconds = 0.002, every: PositiveInt = 2
) -> Subject:
    """A sleep before every n-th launch of a linear layer on one rank, as by a busy thread of Python.

    `rank`: None: the last. `seconds`: before each chosen launch. `every`: n, each n-th linear layer of the
    forward pass.
    """
    return subject.with_injection(kind="launch_sleep", rank=rank, seconds=seconds, every=every)


def alternating(
    subject: PacedStep, dwell_s: Annotated[float, Bounds(at_least=0.02)], together: bool
) -> PacedStep:
    """All ranks alternate between slow and full speed, with the mean of `steady`.

    `dwell_s`: how long a rank keeps a speed; `together`: ranks change at once, else each by itself.
    """
    return replace(
        subject, speeds=replace(subject.speeds, pattern="alternating", dwell_s=dwell_s, together=together)
    )


def one_slow(subject: PacedStep) -> PacedStep:
    """One rank at reduced speed, all others at full speed."""
    return replace(subject, speeds=replace(subject.speeds, pattern="one_slow"))


def steady(subject: PacedStep) -> PacedStep:
    """All ranks at the mean of slow and full speed, all the time."""
    return replace(subject, speeds=replace(subject.speeds, pattern="steady"))
