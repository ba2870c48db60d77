"""The congestion suite: what an incast does to a rack switch, and what each control costs.

The baseline is PFC alone. A fluid model is stepped through time (`suites.congestion.switch`); nothing is
measured, and every number is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from harness.records import Json, Origin, Reading, WrongResult
from suites.congestion.switch import Control, Subject, SwitchHistory, simulate
from suites.congestion.workload import Workload

METHOD = "fluid"


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises Unavailable for a switch that cannot be lossless."""
    given = Workload(**workload)
    given.refuse_lossy()
    return Subject(given, seed)


class Session(NamedTuple):
    """What was simulated. `coarse` has twice the time step, which shows how much the step changes it."""

    subject: Subject
    trace: SwitchHistory
    coarse: SwitchHistory
    notifications: int


def prepare(subject: Subject) -> Session:
    """Simulate; raises WrongResult where bytes are lost."""
    trace, control = run(subject, subject.workload)
    coarse, _ = run(subject, replace(subject.workload, dt_s=2 * subject.workload.dt_s))
    return Session(subject, trace, coarse, control.notifications)


def check(session: Session) -> None:
    """Raise WrongResult where bytes arrive faster than they can."""
    workload, completion_s = session.subject.workload, session.trace.completion_s
    if completion_s < workload.bound_s - workload.dt_s:
        raise WrongResult(
            f"completed after {completion_s:g} s, but a port needs at least {workload.bound_s:g} s"
        )


def run(subject: Subject, workload: Workload) -> tuple[SwitchHistory, Control]:
    """Run one simulation under the subject's control."""
    control = subject.control(workload, subject.seed)
    return simulate(workload, control, subject.seed), control


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about a network may name."""
    workload = session.subject.workload
    return {
        "network": "simulated",
        "pattern": "incast",
        "switches": "1",
        "senders": str(workload.senders),
        "rate": f"{workload.rate_B_per_s * 8e-9:g} Gbit/s",
        "message": f"{workload.message_B:g} B",
        "control": session.subject.name,
    }


def sample(session: Session) -> Iterator[Reading]:
    """Yield completion and its bound, queue, pauses and the error of the time step."""
    workload, trace = session.subject.workload, session.trace
    yield Reading("completion", "s", workload.bound_s, Origin.CALCULATED, "bound")
    for metric, unit, value in (
        ("completion", "s", trace.completion_s),
        ("over_bound", "1", trace.completion_s / workload.bound_s),
        ("goodput", "1", goodput(workload, trace)),
        *queue(trace),
        *pauses(workload, trace),
        ("notifications", "1", float(session.notifications)),
        ("step_error", "1", step_error(trace, session.coarse)),
    ):
        yield Reading(metric, unit, value, Origin.SIMULATED, METHOD)


def goodput(workload: Workload, trace: SwitchHistory) -> float:
    """Return bytes over the time to the last acknowledgement, as a share of the port's rate."""
    return workload.senders * workload.sender_B / trace.completion_s / workload.rate_B_per_s


def queue(trace: SwitchHistory) -> Iterator[tuple[str, str, float]]:
    """Yield the bytes in the switch over time, until the last one left."""
    yield "queue_mean", "B", float(trace.queue_K.mean())
    yield "queue_p99", "B", float(np.percentile(trace.queue_K, 99))
    yield "queue_max", "B", float(trace.queue_K.max())
    yield "largest_port", "B", trace.largest_port_B


def pauses(workload: Workload, trace: SwitchHistory) -> Iterator[tuple[str, str, float]]:
    """Yield how often and how long all senders' ports were paused, and the share of their time."""
    paused_s = float(trace.pausing_K.sum()) * workload.dt_s
    share = paused_s / (len(trace.pausing_K) * workload.dt_s * workload.senders)
    yield "pauses", "1", float(trace.pauses)
    yield "pause_time", "s", paused_s
    yield "pause_share", "1", share
    yield "unpaused_share", "1", 1.0 - share


def step_error(trace: SwitchHistory, coarse: SwitchHistory) -> float:
    """Return the relative change of completion when the step is doubled.

    The model is of first order in the step, so this is about the error of the step itself. Under
    DCQCN a notification that falls elsewhere changes all that follows, as another seed does.
    """
    return abs(coarse.completion_s / trace.completion_s - 1)
