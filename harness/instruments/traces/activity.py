"""What each event of a trace does, in which phase, and in which step.

A step is a `ProfilerStep`. Without one, steps are what repeats: annotations of steps, steps of the optimizer,
or the sequence of names of the kernels. Else the whole trace is one step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from harness.instruments.traces import TraceError
from harness.instruments.traces.communication import Communication, recognized, taken_apart
from harness.instruments.traces.trace import STEP, EventKind, Ints, Mask, OwnedTimes, RankTrace, inside

LEAST_PERIOD, LEAST_NAMES = 8, 4  # of kernels in a step: fewer repeat within one, too
ALIKE = 0.98  # share of the kernels that have the name of the kernel one period later
SAMPLE = 512  # kernels that are compared first


TOLERANCE_ns = 1000  # how long before the end of a step the next may begin: the resolution of older traces
ANNOTATED_STEP = r"(?i)^(## *)?(train(ing)?[ _]?)?(step|iter(ation)?)[ _#:.]*\d*( *##)?$"
"""Annotations of whole steps: step 3, iteration_12, train_step."""

OPTIMIZER_STEP = r"^Optimizer\.step#"

LEAST_WORK = 0.5  # of what other steps launch, for a step at the edge of the trace to count


class Step(NamedTuple):
    """One training step of one rank.

    It ends where the next one begins. A step that no other follows ends with its annotation, or with the last
    kernel that was launched in it where that is later.
    """

    number: int
    start_ns: int
    end_ns: int
    track: int  # the thread that trains


class FoundSteps(NamedTuple):
    """The steps of a trace, and how they were found, "" for those of the profiler."""

    steps: tuple[Step, ...]
    how: str


def find_steps(trace: RankTrace) -> FoundSteps:
    """Return the steps in order, and how they were found; raises TraceError where they overlap."""
    marks = _marks(trace)
    if marks:
        return FoundSteps(_following(trace, marks), "")
    return _annotated(trace) or _between_optimizer_steps(trace) or _repeated(trace) or whole_trace(trace)


def whole_trace(trace: RankTrace) -> FoundSteps:
    """Return the time from the first to the last event as one step."""
    read = np.flatnonzero(_read(trace))
    start_ns, end_ns = int(trace.start_ns[read].min()), int(trace.end_ns[read].max())
    how = "the whole trace, from its first to its last event, is taken as one step"
    return FoundSteps((Step(0, start_ns, end_ns, _training_track(trace)),), how)


def _read(trace: RankTrace) -> Mask:
    return trace.of_kind(
        EventKind.OP, EventKind.ANNOTATION, EventKind.LAUNCH, EventKind.KERNEL, EventKind.COPY
    )


def _training_track(trace: RankTrace) -> int:
    """Return the thread that launches most; without launches, that with most events of the host."""
    for kinds in ((EventKind.LAUNCH,), (EventKind.OP, EventKind.ANNOTATION), tuple(EventKind)):
        tracks = trace.track_of[trace.of_kind(*kinds)]
        if len(tracks):
            return int(np.bincount(tracks).argmax())
    return 0


def _following(trace: RankTrace, marks: list[Step]) -> tuple[Step, ...]:
    """Return the profiler's steps, each to the beginning of the next; raises TraceError."""
    found = []
    for mark, following in pairwise(marks):
        if following.start_ns < mark.end_ns - TOLERANCE_ns:
            raise TraceError(
                f"{trace.path}: step {following.number} begins before step {mark.number} has ended: a clock "
                "runs backwards; record the trace again"
            )
        end_ns = following.start_ns
        if following.number != mark.number + 1:
            end_ns = min(_last_end_ns(trace, mark), end_ns)
        found.append(mark._replace(end_ns=end_ns))
    return (*found, marks[-1]._replace(end_ns=_last_end_ns(trace, marks[-1])))


def _marks(trace: RankTrace) -> list[Step]:
    """Return each ProfilerStep by start, the longest of a number; of the device where the host has none."""
    marked = trace.named(STEP.pattern)
    on_host = marked & trace.of_kind(EventKind.OP, EventKind.ANNOTATION, EventKind.OTHER)
    events = np.flatnonzero(on_host if on_host.any() else marked & trace.of_kind(EventKind.DEVICE_ANNOTATION))
    longest_first = np.argsort(trace.start_ns[events] - trace.end_ns[events], kind="stable")
    by_number: dict[int, Step] = {}
    for event in events[longest_first].tolist():
        number = int(trace.name(event).partition("#")[2])
        track = int(trace.track_of[event]) if on_host.any() else _training_track(trace)
        step = Step(number, int(trace.start_ns[event]), int(trace.end_ns[event]), track)
        by_number.setdefault(number, step)
    return sorted(by_number.values(), key=lambda one: one.start_ns)


def _last_end_ns(trace: RankTrace, mark: Step) -> int:
    """Return when the annotation and the work that was launched in it have ended."""
    launched = trace.launch_of
    at = np.where(launched >= 0, trace.start_ns[np.maximum(launched, 0)], -1)
    of_step = (at >= mark.start_ns) & (at < mark.end_ns)
    return max(mark.end_ns, int(trace.end_ns[of_step].max())) if of_step.any() else mark.end_ns


def _annotated(trace: RankTrace) -> FoundSteps | None:
    """Return the steps that annotations of the host name, of the thread with most of them."""
    chosen = trace.of_kind(EventKind.ANNOTATION) & trace.named(ANNOTATED_STEP)
    if not chosen.any():
        return None
    track = int(np.bincount(trace.track_of[chosen]).argmax())
    events = np.flatnonzero(chosen & (trace.track_of == track))
    apart = trace.start_ns[events][1:] >= trace.end_ns[events][:-1] - TOLERANCE_ns
    if len(events) < 2 or not apart.all():
        return None
    bounds = [*trace.start_ns[events].tolist(), int(trace.end_ns[events[-1]])]
    name = re.sub(r"\d+", "N", trace.name(int(events[0])))
    found = _bounded(trace, bounds, track)
    those = "1 step is that" if len(found) == 1 else f"{len(found)} steps are those"
    return FoundSteps(found, f"{those} of the annotation {name!r}") if found else None


def _between_optimizer_steps(trace: RankTrace) -> FoundSteps | None:
    """Return the steps that end with a step of the optimizer; of several, with that which is called least."""
    chosen = trace.of_kind(EventKind.OP, EventKind.ANNOTATION) & trace.named(OPTIMIZER_STEP)
    names, counts = np.unique(trace.name_of[chosen], return_counts=True)
    if not len(names) or counts.max() < 2:
        return None
    name = names[np.argmin(np.where(counts < 2, len(trace) + 1, counts))]
    events = np.flatnonzero(chosen & (trace.name_of == name))
    read = np.flatnonzero(_read(trace))
    bounds = [int(trace.start_ns[read].min()), *np.unique(trace.end_ns[events]).tolist()]
    found = _bounded(trace, bounds, int(trace.track_of[events[0]]))
    those = "1 step ends" if len(found) == 1 else f"{len(found)} steps each end"
    return FoundSteps(found, f"{those} with {trace.names[name]}") if found else None


def _bounded(trace: RankTrace, bounds: list[int], track: int) -> tuple[Step, ...]:
    """Return the steps between bounds on the host, without one at the edge that has little work."""
    edges = np.unique(np.asarray(bounds, np.int64))
    called = trace.start_ns[trace.launch_of[trace.launch_of >= 0]]
    if not len(called):
        called = trace.start_ns[trace.of_kind(EventKind.OP)]
    work = np.diff(np.searchsorted(np.sort(called), edges))
    kept = [i for i in range(len(work)) if 0 < i < len(work) - 1 or work[i] >= LEAST_WORK * np.median(work)]
    found = [Step(n, int(edges[i]), int(edges[i + 1]), track) for n, i in enumerate(kept)]
    if found:
        found[-1] = found[-1]._replace(end_ns=_last_end_ns(trace, found[-1]))
    return tuple(found)


def _repeated(trace: RankTrace) -> FoundSteps | None:
    """Return the steps of the shortest repetition that covers all kernels, None where there is none.

    Layers repeat within a step. They differ from steps by the kernels that are not part of them: each name
    must be in every repetition.
    """
    kernels = np.flatnonzero(trace.of_kind(EventKind.KERNEL))
    launch = trace.launch_of[kernels]
    called_ns = trace.start_ns[np.where(launch >= 0, launch, kernels)]
    kernels = kernels[np.argsort(called_ns, kind="stable")]
    names = trace.name_of[kernels]
    period = _period(names)
    if period is None:
        return None
    count = len(names) // period
    first = np.minimum.accumulate(trace.start_ns[kernels][::-1])[::-1]  # of this and all later ones
    edges = np.append(first, trace.end_ns[kernels].max())[: count * period + 1 : period].tolist()
    if not np.all(np.diff(edges) > 0):
        return None
    track = _training_track(trace)
    found = tuple(Step(n, edges[n], edges[n + 1], track) for n in range(count))
    return FoundSteps(found, f"{count} steps are repetitions of the same {period} kernels")


def _period(names: Ints) -> int | None:
    """Return the shortest period of at least two repetitions, between two of the rarest name; else None."""
    different, counts = np.unique(names, return_counts=True)
    if len(names) < 2 * LEAST_PERIOD or len(different) < LEAST_NAMES:
        return None
    rarest = np.flatnonzero(names == different[counts.argmin()])
    for period in (rarest[1:] - rarest[0]).tolist():
        repetitions = len(names) // period
        if period < LEAST_PERIOD or repetitions > len(rarest) or repetitions < 2:
            continue
        if _alike(names[period : period + SAMPLE], names[:SAMPLE]) and _alike(names[period:], names):
            return int(period)
    return None


def _alike(later: Ints, earlier: Ints) -> bool:
    return bool(np.mean(later == earlier[: len(later)]) >= ALIKE)


COMMUNICATION_ON_HOST = r"^(gloo|ucc|mpi):"  # by threads of the host, from call to end
LOADING = r"^enumerate\(DataLoader\)|(?i:data_?(load|wait|fetch)|(next|get|fetch)_batch)"
"""Annotations of the time in which the training thread asks for its next batch."""

NO_COMPUTATION = (
    r"^(autograd::|torch::autograd::|_?c10d|gloo:|nccl:|ucc:|mpi:|profiler::|record_param_comms|"
    r"ProfilerStep#)"
)
"""Operators that call others or wait, and compute nothing of their own."""

PHASES = ("forward", "backward", "optimizer")
BACKWARD = r"^autograd::engine::evaluate_function|(?i:\bbackward\b|_backward$|^backward)"
OPTIMIZER = r"^Optimizer\.(step|zero_grad)#|(?i:^optimi[sz]er|\boptimi[sz]er_step\b)"

OPERATIONS = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv", "broadcast", "barrier"),
    *("reduce", "gather", "scatter", "send", "recv", "dispatch", "combine"),
)
"""Collectives as PyTorch calls them, the first of which a name contains the letters counts."""


@dataclass(frozen=True)
class Activity:
    """A trace with its steps and the kinds of work in it.

    `patterns` are regular expressions of kernels that communicate, beyond those that are recognized.
    `whole` takes the whole trace as one step.
    """

    trace: RankTrace
    patterns: tuple[str, ...] = ()
    whole: bool = False

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps; raises TraceError."""
        return self.found_steps.steps

    @cached_property
    def found_steps(self) -> FoundSteps:
        """Return the steps and how they were found; raises TraceError."""
        return whole_trace(self.trace) if self.whole else find_steps(self.trace)

    @cached_property
    def edges_ns(self) -> Ints:
        """Return when each step begins and ends. [step, 2]"""
        return np.array([(one.start_ns, one.end_ns) for one in self.steps], np.int64)

    def step_at(self, at_ns: Ints) -> Ints:
        """Return in which step each instant is, by its position; -1 for none. [instant]"""
        step = np.searchsorted(self.edges_ns[:, 0], at_ns, side="right") - 1
        return np.where((step >= 0) & (at_ns < self.edges_ns[np.maximum(step, 0), 1]), step, -1)

    @cached_property
    def training_track(self) -> int:
        """Return the thread of the host that trains."""
        return self.steps[0].track

    @cached_property
    def communication(self) -> Mask:
        """Return which events are collectives under way. [event]"""
        on_host = self._hosts & self.trace.named(COMMUNICATION_ON_HOST)
        return np.asarray(self.on_device.under_way | on_host, np.bool_)

    @cached_property
    def _hosts(self) -> Mask:
        return self.trace.of_kind(EventKind.OP, EventKind.ANNOTATION)

    @cached_property
    def on_device(self) -> Communication:
        """Return what of the device's work is communication, and how it was recognized."""
        return Communication(self.trace, self.patterns)

    @cached_property
    def fused(self) -> Mask:
        """Return which kernels compute and communicate; they are of both kinds. [event]"""
        return self.on_device.computes_too

    @cached_property
    def computing(self) -> Mask:
        """Return which events compute: kernels, or without a GPU the operators of the training threads."""
        trace = self.trace
        if trace.has_device:
            return trace.of_kind(EventKind.KERNEL) & (~self.communication | self.fused)
        return self._operators & ~inside(self.loading, trace.start_ns)

    @cached_property
    def _operators(self) -> Mask:
        trace = self.trace
        works = trace.named(r"^autograd::engine::evaluate_function|^ProfilerStep#")
        training = np.isin(trace.track_of, [*np.unique(trace.track_of[works]), self.training_track])
        ops = trace.of_kind(EventKind.OP) & training & ~trace.named(NO_COMPUTATION)
        own = ops & trace.named("::")
        bare = np.flatnonzero(ops & ~own)
        found = own.copy()
        for track in np.unique(trace.track_of[bare]):
            starts = trace.start_ns[own & (trace.track_of == track)]
            here = bare[trace.track_of[bare] == track]
            first = np.searchsorted(starts, trace.start_ns[here])
            found[here] = first == np.searchsorted(starts, trace.end_ns[here])
        return found

    @cached_property
    def copying(self) -> Mask:
        """Return which events are copies and fills by the device. [event]"""
        return self.trace.of_kind(EventKind.COPY) & ~self.communication

    @cached_property
    def loading(self) -> OwnedTimes:
        """Return when the training thread waits for its next batch."""
        hosts = self._hosts & (self.trace.track_of == self.training_track)
        return self.trace.pieces(hosts & self.trace.named(LOADING))

    @cached_property
    def phase(self) -> Ints:
        """Return the phase of each event as an index of `PHASES`, -1 unknown; by its launch. [event]"""
        trace, host = self.trace, self.trace.host_event
        phase = np.where(trace.track_of[np.maximum(host, 0)] == self.training_track, 0, -1)
        for number, pattern in ((1, BACKWARD), (2, OPTIMIZER)):
            phase[trace.around(self._hosts & trace.named(pattern), host) >= 0] = number
        phase[host < 0] = -1
        return phase

    @cached_property
    def operator_of(self) -> Ints:
        """Return the outermost operator in which each event or its launch begins, -1 for none. [event]"""
        trace = self.trace
        operators = trace.of_kind(EventKind.OP) & ~trace.named(NO_COMPUTATION) & trace.named("::")
        return trace.around(operators, trace.host_event)

    def operation_names(self, event: int) -> str:
        """Return the operation of an event: a collective, the operator that launched it, or its own name."""
        if event < 0:
            return ""
        if self.communication[event] and not self.fused[event]:
            return self.operation(event)
        operator = int(self.operator_of[event])
        return self.trace.name(operator if operator >= 0 else event)

    def operation(self, event: int) -> str:
        """Return the collective of a communication event, as PyTorch calls it."""
        calls, name = self.trace.collectives, self.trace.name(event)
        family = recognized(name).family
        if event not in calls and family is not None and family.operation:
            return family.operation
        caller = int(self.on_device.call_of[event])
        texts = (
            calls[event].operation if event in calls else "",
            taken_apart(name).function if self.trace.kind[event] == EventKind.KERNEL else name,
            calls[caller].operation if caller in calls else "",
            self.trace.name(caller) if caller >= 0 else "",
        )
        for text in texts:
            letters = re.sub(r"[^a-z]", "", text.lower())
            if found := next((one for one in OPERATIONS if one.replace("_", "") in letters), ""):
                return found
            if short := re.search(r"_(rs|ag)(?![a-z])", text):
                return {"rs": "reduce_scatter", "ag": "all_gather"}[short[1]]
        return "collective"

    def collective(self, event: int) -> str:
        """Return the operation and the process group of a communication event, where the trace has it."""
        call = self.trace.collectives.get(event)
        return f"{self.operation(event)} of {call.group}" if call and call.group else self.operation(event)
