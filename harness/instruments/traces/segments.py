"""Each instant of each step has one state: the segments of a rank's time line.

The first that applies: a kernel computes; a collective is under way (exposed communication, or waiting for
a rank that has not arrived); a copy runs; the device is idle. Idle time belongs to the next kernel: until its
launch is called it is preparation (waiting for data where the training thread waits for its batch), then the
call. Idle time that no recorded launch ends has an unknown cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.trace import Ints, Mask, inside, owners


class State(IntEnum):
    """What a rank does at an instant."""

    COMPUTING = 0
    COMMUNICATION = 1
    COPYING = 2
    PREPARING = 3
    CALLING = 4
    WAITING_FOR_DATA = 5
    WAITING_FOR_RANK = 6
    IDLE = 7


STATE_NAMES = {
    State.COMPUTING: "computing",
    State.COMMUNICATION: "exposed communication",
    State.COPYING: "copies",
    State.PREPARING: "launch gap, prepare",
    State.CALLING: "launch gap, call",
    State.WAITING_FOR_DATA: "waiting for data",
    State.WAITING_FOR_RANK: "waiting for a slower rank",
    State.IDLE: "idle, cause unknown",
}
"""State -> how people read it."""


class Wait(NamedTuple):
    """A collective in which a rank waited: until when, by its own clock, and for which rank."""

    until_ns: int
    rank: int


@dataclass(frozen=True)
class Segments:
    """The states of one rank in its steps, in order and without gaps within a step. [segment]

    `event` is the event that runs, or the one that idle time ends with; -1 where there is none.
    `slower_rank` is the rank that is waited for, else -1. `step` indexes the steps.
    """

    start_ns: Ints
    end_ns: Ints
    state: Ints
    event: Ints
    slower_rank: Ints
    step: Ints

    @property
    def duration_ns(self) -> Ints:
        """Return the lengths. [segment]"""
        return self.end_ns - self.start_ns


def segments(activity: Activity, waits: Mapping[int, Wait] | None = None) -> Segments:
    """Return the states of a rank in its steps; `waits` has the waiting by event of communication."""
    trace, waits = activity.trace, waits or {}
    kinds = (activity.computing, activity.communication, activity.copying)
    compute, communicate, copy = map(trace.pieces, kinds)
    on_device = activity.computing | activity.communication | activity.copying
    until_ns = np.array([wait.until_ns for wait in waits.values()], np.int64)
    calls_ns = trace.start_ns[trace.launch_of[trace.launch_of >= 0]]
    bounds = [
        one for of in (compute, communicate, copy, activity.loading) for one in (of.start_ns, of.end_ns)
    ]
    start_ns, end_ns, step = _cut(activity, [*bounds, until_ns, calls_ns])
    states, events = np.full(len(start_ns), State.IDLE, np.int64), np.full(len(start_ns), -1, np.int64)
    for state, of in ((State.COPYING, copy), (State.COMMUNICATION, communicate), (State.COMPUTING, compute)):
        owner = owners(of, start_ns)
        states[owner >= 0] = state
        events[owner >= 0] = owner[owner >= 0]
    idle = states == State.IDLE
    events[idle] = _next_event(activity, on_device, start_ns[idle])
    states[idle] = _idle_states(activity, start_ns[idle], events[idle])
    slower_rank = _apply_waits(waits, start_ns, states, events, len(trace))
    return _joined(Segments(start_ns, end_ns, states, events, slower_rank, step))


def _cut(activity: Activity, bounds: list[Ints]) -> tuple[Ints, Ints, Ints]:
    at = np.unique(np.concatenate([*bounds, activity.edges_ns.ravel()]))
    start_ns, end_ns, step = at[:-1], at[1:], activity.step_at(at[:-1])
    kept = step >= 0
    return start_ns[kept], end_ns[kept], step[kept]


def _next_event(activity: Activity, on_device: Mask, at_ns: Ints) -> Ints:
    """Return the next event of the device that starts at or after each instant, -1 where there is none."""
    events = np.flatnonzero(on_device)
    at = np.searchsorted(activity.trace.start_ns[events], at_ns)
    return np.append(events, -1)[at]


def _idle_states(activity: Activity, at_ns: Ints, following: Ints) -> Ints:
    """Return why the device is idle at each instant, by the event that follows."""
    trace = activity.trace
    if trace.has_device:
        launch = np.where(following >= 0, trace.launch_of[np.maximum(following, 0)], -1)
        launch_ns = trace.start_ns[np.maximum(launch, 0)]
        state = np.where(at_ns < launch_ns, State.PREPARING, State.CALLING)
        state[launch < 0] = State.IDLE
    else:
        state = np.where(following >= 0, State.PREPARING, State.IDLE)
    waits = inside(activity.loading, at_ns) & (state != State.CALLING)
    return np.where(waits, State.WAITING_FOR_DATA, state)


def _apply_waits(waits: Mapping[int, Wait], start_ns: Ints, states: Ints, events: Ints, count: int) -> Ints:
    """Turn exposed communication before the last rank arrives into waiting; return for which rank."""
    until_ns, rank = np.zeros(count + 1, np.int64), np.full(count + 1, -1, np.int64)
    for event, wait in waits.items():
        until_ns[event], rank[event] = wait
    early = (states == State.COMMUNICATION) & (start_ns < until_ns[events])
    states[early] = State.WAITING_FOR_RANK
    return np.where(early, rank[events], -1)


def _joined(cut: Segments) -> Segments:
    if not len(cut.start_ns):
        return cut
    columns = (cut.state, cut.event, cut.slower_rank, cut.step)
    same = cut.end_ns[:-1] == cut.start_ns[1:]
    for column in columns:
        same &= column[:-1] == column[1:]
    first, last = np.append(True, ~same), np.append(~same, True)
    return Segments(cut.start_ns[first], cut.end_ns[last], *(column[first] for column in columns))
