"""The shares of a step: what each rank's time went to, as whole nanoseconds that sum to the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from harness.instruments.traces.activity import PHASES, Activity
from harness.instruments.traces.segments import STATE_NAMES, Segments, State

K = TypeVar("K")


class TimeShare(NamedTuple):
    """A part of every step.

    `detail` says more of the state: the collective, the rank that is waited for, the kind of copy.
    """

    state: State
    detail: str
    by_step_ns: tuple[float, ...]  # whole nanoseconds, but for a mean over ranks

    @property
    def name(self) -> str:
        """Return the state and its detail in words."""
        return f"{STATE_NAMES[self.state]}: {self.detail}" if self.detail else STATE_NAMES[self.state]

    @property
    def mean_s(self) -> float:
        """Return the mean over steps in seconds."""
        return float(np.mean(self.by_step_ns)) / 1e9


class WorkShare(NamedTuple):
    """A part of every step by phase, layer and operation; idle time is that of the operation that follows."""

    phase: str
    layer: str
    operation: str
    state: State
    by_step_ns: tuple[float, ...]  # whole nanoseconds, but for a mean over ranks

    @property
    def mean_s(self) -> float:
        """Return the mean over steps in seconds."""
        return float(np.mean(self.by_step_ns)) / 1e9


def shares(activity: Activity, cut: Segments, chosen: Sequence[int]) -> tuple[TimeShare, ...]:
    """Return the shares of the chosen steps (positions), largest first; they sum to the steps exactly."""
    details = [_detail(activity, cut, i) for i in range(len(cut.state))]
    table = _by_step(cut, list(zip(cut.state.tolist(), details, strict=True)), chosen)
    found = [TimeShare(State(state), detail, times) for (state, detail), times in table.items()]
    return tuple(sorted(found, key=lambda share: -sum(share.by_step_ns)))


def work_shares(activity: Activity, cut: Segments, chosen: Sequence[int]) -> tuple[WorkShare, ...]:
    """Return the same times by phase, layer and operation, largest first."""
    phases, names, layers = activity.phase, activity.operation_names, activity.layer_names
    keys = []
    for state, event in zip(cut.state.tolist(), cut.event.tolist(), strict=True):
        phase = PHASES[phases[event]] if event >= 0 and phases[event] >= 0 else ""
        keys.append((phase, layers(event), names(event), state))
    table = _by_step(cut, keys, chosen)
    found = [WorkShare(p, layer, o, State(s), times) for (p, layer, o, s), times in table.items()]
    return tuple(sorted(found, key=lambda share: -sum(share.by_step_ns)))


def _by_step(cut: Segments, keys: Sequence[K], chosen: Sequence[int]) -> dict[K, tuple[int, ...]]:
    """Return the time of each key in each of the chosen steps."""
    column = {step: i for i, step in enumerate(chosen)}
    table: dict[K, list[int]] = {}
    for key, step, length_ns in zip(keys, cut.step.tolist(), cut.duration_ns.tolist(), strict=True):
        if step in column:
            table.setdefault(key, [0] * len(chosen))[column[step]] += length_ns
    return {key: tuple(times) for key, times in table.items()}


def _detail(activity: Activity, cut: Segments, at: int) -> str:
    state, event = cut.state[at], int(cut.event[at])
    if state == State.COMMUNICATION:
        group = activity.group(event)
        operation = activity.operation(event)
        return f"{operation} of {group}" if group else operation
    if state == State.WAITING_FOR_RANK:
        return f"rank {cut.slower_rank[at]}"
    if state == State.COPYING:
        return activity.trace.name(event).partition("(")[0].strip()
    return ""
