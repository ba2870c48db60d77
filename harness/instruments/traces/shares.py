"""The shares of a step: what each rank's time went to, as whole nanoseconds that sum to the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.activity import PHASES, Activity
from harness.instruments.traces.reading.layers import layer_names
from harness.instruments.traces.reading.trace import Ints
from harness.instruments.traces.segments import STATE_NAMES, Segments, State


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
    labels, label = _details(activity, cut)
    table = _by_step(cut, (cut.state, label), chosen)
    found = [TimeShare(State(state), labels[code], times) for (state, code), times in table.items()]
    return tuple(sorted(found, key=lambda share: -sum(share.by_step_ns)))


def work_shares(activity: Activity, cut: Segments, chosen: Sequence[int]) -> tuple[WorkShare, ...]:
    """Return the same times by phase, layer and operation, largest first."""
    layer, layers = layer_names(activity)
    names, name = _labels(cut.event, activity.operation_names, _operation_keys(activity, cut.event))
    none = cut.event < 0
    phase = np.where(none, -1, activity.phase[cut.event])
    columns = phase, np.where(none, 0, layer[cut.event]), name, cut.state
    found = [
        WorkShare(PHASES[p] if p >= 0 else "", layers[at], names[code], State(state), times)
        for (p, at, code, state), times in _by_step(cut, columns, chosen).items()
    ]
    return tuple(sorted(found, key=lambda share: -sum(share.by_step_ns)))


def _by_step(
    cut: Segments, columns: Sequence[Ints], chosen: Sequence[int]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the time of each combination of the columns' values in each of the chosen steps."""
    place = np.full(int(cut.step.max(initial=0)) + 1, -1, np.int64)
    place[list(chosen)] = np.arange(len(chosen))
    kept = place[cut.step] >= 0
    keys, row = np.unique(np.stack([one[kept] for one in columns], axis=1), axis=0, return_inverse=True)
    table = np.zeros((len(keys), len(chosen)), np.int64)
    np.add.at(table, (row.ravel(), place[cut.step[kept]]), cut.duration_ns[kept])
    return {tuple(key): tuple(times) for key, times in zip(keys.tolist(), table.tolist(), strict=True)}


def _details(activity: Activity, cut: Segments) -> tuple[list[str], Ints]:
    """Return texts, and which of them says more of each segment's state. [segment]"""
    communicates = cut.state == State.COMMUNICATION
    copies = cut.state == State.COPYING
    waits = cut.state == State.WAITING_FOR_RANK
    texts, label = [""], np.zeros(len(cut.state), np.int64)
    for chosen, text, keys in (
        (communicates, activity.collective, cut.event[communicates]),
        (copies, activity.copy_name, activity.trace.name_of[cut.event[copies]]),
    ):
        more, code = _labels(cut.event[chosen], text, keys)
        label[chosen] = code + len(texts)
        texts += more
    ranks, code = np.unique(cut.slower_rank[waits], return_inverse=True)
    label[waits] = code + len(texts)
    return texts + [f"rank {rank}" for rank in ranks], label


def _operation_keys(activity: Activity, events: Ints) -> Ints:
    """Return numbers that are equal only for events with one name of an operation. [segment]"""
    of, count = activity.operator_of, len(activity.trace.names)
    shown = np.where(of >= 0, of, np.arange(len(of)))
    collective = activity.communication & ~activity.fused
    keys = np.where(collective, count + np.arange(len(of)), activity.trace.name_of[shown])
    return np.where(events >= 0, keys[events], -1)


def _labels(events: Ints, text: Callable[[int], str], keys: Ints) -> tuple[list[str], Ints]:
    """Return the different texts of some events, and which each has; events with one key have one text."""
    _, first, code = np.unique(keys, return_index=True, return_inverse=True)
    by_key = [text(int(events[i])) for i in first]
    texts = list(dict.fromkeys(by_key))
    place = {one: i for i, one in enumerate(texts)}
    return texts, np.array([place[one] for one in by_key], np.int64)[code]
