"""The steps of a trace: the times that the shares of a breakdown sum to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.traces.reading.error import TraceError
from harness.instruments.traces.reading.trace import STEP, EventKind, RankTrace

TOLERANCE_ns = 1000
"""How long before the end of a step the next may begin: the resolution of older traces."""


class Step(NamedTuple):
    """One training step of one rank.

    It ends where the next one begins. A step that no other follows ends with its annotation, or with the last
    kernel that was launched in it where that is later.
    """

    number: int
    start_ns: int
    end_ns: int
    track: int  # the thread that trains


def steps(trace: RankTrace) -> tuple[Step, ...]:
    """Return the steps in order; raises TraceError where there is none, or where they overlap."""
    marks = _marks(trace)
    if not marks:
        raise TraceError(
            f"{trace.path}: has no ProfilerStep; call prof.step() after each step, under "
            "torch.profiler.profile(schedule=...)"
        )
    found = []
    for i, mark in enumerate(marks):
        following = marks[i + 1] if i + 1 < len(marks) else None
        if following is not None and following.start_ns < mark.end_ns - TOLERANCE_ns:
            raise TraceError(
                f"{trace.path}: step {following.number} begins before step {mark.number} has ended: a clock "
                "runs backwards; record the trace again"
            )
        if following is not None and following.number == mark.number + 1:
            found.append(mark._replace(end_ns=following.start_ns))
        else:
            end_ns = _last_end_ns(trace, mark)
            found.append(
                mark._replace(end_ns=end_ns if following is None else min(end_ns, following.start_ns))
            )
    return tuple(found)


def _marks(trace: RankTrace) -> list[Step]:
    """Return each ProfilerStep of the host, by start; of several with one number the longest."""
    by_number: dict[int, Step] = {}
    for event in np.flatnonzero(trace.named(STEP.pattern)):
        if trace.kind[event] in (EventKind.DEVICE_ANNOTATION, EventKind.KERNEL, EventKind.PYTHON):
            continue
        match = STEP.match(trace.name(int(event)))
        number = int(match[1]) if match else 0
        start_ns, end_ns = int(trace.start_ns[event]), int(trace.end_ns[event])
        known = by_number.get(number)
        if known is None or end_ns - start_ns > known.end_ns - known.start_ns:
            by_number[number] = Step(number, start_ns, end_ns, int(trace.track_of[event]))
    return sorted(by_number.values(), key=lambda step: step.start_ns)


def _last_end_ns(trace: RankTrace, mark: Step) -> int:
    """Return when the annotation and the work that was launched in it have ended."""
    launched = trace.launch_of
    at = np.where(launched >= 0, trace.start_ns[np.maximum(launched, 0)], -1)
    of_step = (at >= mark.start_ns) & (at < mark.end_ns)
    return max(mark.end_ns, int(trace.end_ns[of_step].max())) if of_step.any() else mark.end_ns
