"""The congestion suite: what an incast does to a rack switch, and what each way to hold it back costs.

The baseline is PFC alone. A fluid model is stepped through time (`suites.congestion.switch`); nothing is
measured, and every figure is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness.records import Json, Origin, Reading, WrongResult
from suites.congestion.subject import Control, Subject, Workload
from suites.congestion.switch import Trace, simulate

METHOD = "fluid"


def build(workload: Json, seed: int) -> Subject:
    """The baseline; raises ValueError and Unavailable for a switch that there cannot be."""
    given = Workload(**workload)
    given.refuse_lossy()
    return Subject(given, seed)


def check(subject: Subject, module: Any) -> None:
    """Simulate, keep what happened; raises WrongResult where bytes are lost, or come faster than they can.

    Another run with twice the step tells what the step does to the result.
    """
    workload = subject.workload
    trace, control = run(subject, workload)
    if trace.completion_s < workload.bound_s - workload.dt_s:
        raise WrongResult(
            f"done after {trace.completion_s:g} s, where a port takes {workload.bound_s:g} s at least"
        )
    coarse = replace(workload, dt_s=2 * workload.dt_s)
    subject.held.update(trace=trace, control=control, coarse=run(subject, coarse)[0])


def run(subject: Subject, workload: Workload) -> tuple[Trace, Control]:
    """One simulation under the subject's control."""
    control = subject.control(workload, subject.seed)
    return simulate(workload, control, subject.seed), control


def conditions(subject: Subject) -> Mapping[str, str]:
    """What a claim about a network may ask after."""
    workload = subject.workload
    return {
        "network": "simulated",
        "pattern": "incast",
        "switches": "1",
        "senders": str(workload.senders),
        "rate": f"{workload.rate_B_per_s * 8e-9:g} Gbit/s",
        "message": f"{workload.message_B:g} B",
        "control": subject.name,
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Completion beside its bound, the queue, pauses, and what the step may be off by."""
    workload, trace = subject.workload, subject.held["trace"]
    yield Reading("completion", "s", workload.bound_s, Origin.CALCULATED, "bound")
    for metric, unit, value in (
        ("completion", "s", trace.completion_s),
        ("over_bound", "1", trace.completion_s / workload.bound_s),
        ("goodput", "1", goodput(workload, trace)),
        *queue(trace),
        *pauses(workload, trace),
        ("notifications", "1", float(subject.held["control"].notifications)),
        ("step_error", "1", step_error(trace, subject.held["coarse"])),
    ):
        yield Reading(metric, unit, value, Origin.SIMULATED, METHOD)


def goodput(workload: Workload, trace: Trace) -> float:
    """Bytes over the time to the last acknowledgement, as a share of the port's rate."""
    return workload.senders * workload.sender_B / trace.completion_s / workload.rate_B_per_s


def queue(trace: Trace) -> Iterator[tuple[str, str, float]]:
    """Bytes in the switch, over time until the last left it."""
    yield "queue_mean", "B", float(trace.queue_K.mean())
    yield "queue_p99", "B", float(np.percentile(trace.queue_K, 99))
    yield "queue_max", "B", float(trace.queue_K.max())
    yield "largest_port", "B", trace.largest_port_B


def pauses(workload: Workload, trace: Trace) -> Iterator[tuple[str, str, float]]:
    """Of all senders' ports together: how often, how long, and which share of their time."""
    paused_s = float(trace.pausing_K.sum()) * workload.dt_s
    share = paused_s / (len(trace.pausing_K) * workload.dt_s * workload.senders)
    yield "pauses", "1", float(trace.pauses)
    yield "pause_time", "s", paused_s
    yield "pause_share", "1", share
    yield "unpaused_share", "1", 1.0 - share


def step_error(trace: Trace, coarse: Trace) -> float:
    """The relative change of completion when the step is doubled.

    The model is of first order in the step, so this is about as much as the step itself is off by. Under
    DCQCN a notification that falls elsewhere changes all that follows, as another seed does.
    """
    return abs(coarse.completion_s / trace.completion_s - 1)


def close(subject: Subject) -> None:
    """Let go of what was simulated."""
    subject.held.clear()
