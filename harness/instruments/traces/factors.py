"""The shares of a step, and factors from a datasheet's time to the observed one (Chopper, arXiv 2512.08242).

theoretical time = model FLOP / peak. Times instruction, utilisation, overlap and frequency it is the time of
the kernels. Each further factor adds what the step spends without computing: (time so far + share) / time so
far. So the product is the observed time. What nobody can give is merged into one factor that names it.

Layers: an event belongs to the innermost module that runs on the host when the event is launched; one of the
backward pass to that of the forward operator with its sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.activity import BACKWARD, PHASES, Activity
from harness.instruments.traces.segments import STATE_NAMES, Segments, State
from harness.instruments.traces.trace import EventKind, Ints, covered_ns, having

MODULE = "nn.Module: "  # how Kineto calls modules, with with_stack=True and with_modules=True
ANNOTATED = r"(?i)^(layers?|blocks?|h)[._ #]?\d+$"  # layers.3, block 3, layer_3


def layer_names(activity: Activity) -> tuple[Ints, tuple[str, ...]]:
    """Return the layer of each event as an index of the names; the first name is "". [event]"""
    trace = activity.trace
    modules = trace.of_kind(EventKind.PYTHON) & trace.named(f"^{MODULE}")
    modules |= trace.of_kind(EventKind.ANNOTATION) & trace.named(ANNOTATED)
    if not modules.any():
        return np.zeros(len(trace), np.int64), ("",)
    inner = trace.around(modules, trace.host_event, inner=True)
    layer = _backward(activity, np.where(inner >= 0, trace.name_of[np.maximum(inner, 0)] + 1, 0))
    kept, layer = np.unique(np.concatenate(([0], layer)), return_inverse=True)
    return layer[1:], tuple("" if one == 0 else trace.names[one - 1].removeprefix(MODULE) for one in kept)


def _backward(activity: Activity, layer: Ints) -> Ints:
    """Give what the backward pass launches the layer of the forward operator with its sequence number."""
    trace = activity.trace
    operators = trace.of_kind(EventKind.OP) & (trace.sequence >= 0)
    forward = np.flatnonzero(operators & (layer > 0) & (activity.phase == 0))
    node = trace.around(operators & trace.named(BACKWARD), trace.host_event)
    of = having(forward, trace.sequence[forward], trace.sequence[np.maximum(node, 0)])
    return np.where((node >= 0) & (of >= 0), layer[np.maximum(of, 0)], layer)


class TimeShare(NamedTuple):
    """A part of every step; `detail`: the collective, the rank that is waited for, the kind of copy."""

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


def time_in(shares: Sequence[TimeShare], *states: State) -> float:
    """Return the mean seconds of a step that are spent in any of the states."""
    return sum(share.mean_s for share in shares if share.state in states)


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
    trace = activity.trace
    communicates = cut.state == State.COMMUNICATION
    copies = cut.state == State.COPYING
    waits = cut.state == State.WAITING_FOR_RANK
    texts, label = [""], np.zeros(len(cut.state), np.int64)
    for chosen, text, keys in (
        (communicates, activity.collective, cut.event[communicates]),
        (copies, lambda event: trace.name(event).partition("(")[0].strip(), trace.name_of[cut.event[copies]]),
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


OF_KERNELS = ("instruction", "utilisation", "overlap", "frequency")  # in Chopper's order

HOW_TO_GET = {
    "theoretical": "give model_FLOP (per step and device) and the peak in FLOP/s",
    "instruction": "executed over model FLOP, from hardware counters",
    "utilisation": "from hardware counters, or kernels timed alone at a known clock",
    "overlap": "kernels with sizes (record_shapes=True) that run both with and without communication",
    "frequency": "peak over observed clock, sampled during the steps",
}
"""Factor -> what would give it."""

ADDED = {
    state: "waiting for slower ranks" if state == State.WAITING_FOR_RANK else STATE_NAMES[state]
    for state in (
        *(State.COPYING, State.COMMUNICATION, State.WAITING_FOR_RANK),
        *(State.PREPARING, State.CALLING, State.WAITING_FOR_DATA, State.IDLE),
    )
}
"""What is added to the kernels' time, in this order."""

FREE, BUSY = 0.05, 0.5
"""A kernel runs alone below the first share of overlap, and overlapped from the second on."""


class Factor(NamedTuple):
    """A factor; `time_s` is the time of the step up to and with it."""

    name: str
    value: float
    time_s: float


class Factors(NamedTuple):
    """`base_s` times all factors is the observed time of the step."""

    base_name: str
    base_s: float
    factors: tuple[Factor, ...]
    missing: tuple[str, ...]

    @property
    def observed_s(self) -> float:
        """Return the product."""
        return self.base_s * float(np.prod([factor.value for factor in self.factors]))


def factors(
    shares: Sequence[TimeShare],
    *,
    model_FLOP: float | None = None,
    peak_FLOP_per_s: float | None = None,
    known: Mapping[str, float] | None = None,
) -> Factors:
    """Return the factors of the mean step; `known` has those of `OF_KERNELS` that can be given.

    Where nothing computes there are no factors. Raises ValueError for a factor of another name, or one that
    is not positive.
    """
    known = dict(known or {})
    for name, value in known.items():
        if name not in OF_KERNELS or not value > 0:
            raise ValueError(f"{name}={value}: expected a positive factor, one of {', '.join(OF_KERNELS)}")
    computing_s = time_in(shares, State.COMPUTING)
    if not computing_s:
        step_s = sum(share.mean_s for share in shares)
        return Factors("observed, as nothing computes", step_s, (), ("factors: nothing computes",))
    given = {name: known[name] for name in OF_KERNELS if name in known}
    missing = [name for name in OF_KERNELS if name not in known]
    if model_FLOP and peak_FLOP_per_s:
        base_name, base_s = "theoretical", model_FLOP / peak_FLOP_per_s
    else:
        missing.insert(0, "theoretical")
        base_s = computing_s / float(np.prod(list(given.values())))
        base_name = f"computing, with {', '.join(missing)}"
    chain, time_s = [], base_s
    for name, value in given.items():
        time_s *= value
        chain.append(Factor(name, value, time_s))
    if "theoretical" not in missing:
        rest = f"not separated: {', '.join(missing)}" if missing else "unexplained"
        chain.append(Factor(rest, computing_s / time_s, computing_s))
    time_s = computing_s
    for state, name in ADDED.items():
        before_s, time_s = time_s, time_s + time_in(shares, state)
        chain.append(Factor(name, time_s / before_s, time_s))
    named = tuple(f"{name}: {HOW_TO_GET[name]}" for name in missing)
    return Factors(base_name, base_s, tuple(chain), named)


def overlap_factor(activity: Activity) -> float | None:
    """Return by how much communication slows kernels.

    Chopper: the median duration at high overlap over that at the lowest overlap, at least 1, for kernels of
    one name and size. None where no kernel runs both with and without communication.
    """
    trace = activity.trace
    events = np.flatnonzero(activity.computing & ~activity.fused)
    length_ns = trace.end_ns[events] - trace.start_ns[events]
    communicate = trace.pieces(activity.communication)
    if not len(communicate.start_ns):
        return 1.0
    covered = covered_ns(communicate, trace.start_ns[events], trace.end_ns[events])
    overlap = covered / np.maximum(length_ns, 1)
    spent_ns = alone_ns = 0.0
    same = np.stack([trace.name_of[events], trace.shape[events]], axis=1)
    for name, shape in np.unique(same[same[:, 1] >= 0], axis=0):
        one = (same[:, 0] == name) & (same[:, 1] == shape)
        low, high = one & (overlap <= FREE), one & (overlap >= BUSY)
        if low.any() and high.any():
            slowed = float(np.median(length_ns[high]) / max(np.median(length_ns[low]), 1))
            total_ns, overlapped_ns = float(length_ns[one].sum()), float(length_ns[high].sum())
            spent_ns += total_ns
            alone_ns += total_ns - overlapped_ns + overlapped_ns / max(slowed, 1.0)
    return spent_ns / alone_ns if alone_ns else None
