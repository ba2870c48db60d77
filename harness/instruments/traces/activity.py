"""What each event of a trace does: computing, communication, copying, loading data; and in which phase."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.instruments.traces.communication import Communication, recognized, taken_apart
from harness.instruments.traces.intervals import OwnedTimes, inside, owners, pieces
from harness.instruments.traces.reading.steps import FoundSteps, Step, find_steps, whole_trace
from harness.instruments.traces.reading.trace import EventKind, Ints, Mask, RankTrace

COMMUNICATION_ON_HOST = r"^(gloo|ucc|mpi):"
"""Collectives that threads of the host do, from their call to their end."""

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

OPERATIONS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "dispatch": "dispatch",
    "combine": "combine",
}
"""Letters that a collective's name contains -> how PyTorch calls it; the first that is found."""


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
    def training_track(self) -> int:
        """Return the thread of the host that trains."""
        return self.steps[0].track

    @cached_property
    def communication(self) -> Mask:
        """Return which events are collectives under way. [event]"""
        trace = self.trace
        on_host = trace.of_kind(EventKind.OP, EventKind.ANNOTATION)
        on_host &= trace.named(COMMUNICATION_ON_HOST)
        return np.asarray(self.on_device.under_way | on_host, np.bool_)

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
        """Return the operators that compute on the host's training threads. [event]"""
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
        return self.when(LOADING, self.training_track)

    def when(self, pattern: str, track: int) -> OwnedTimes:
        """Return when the host is in operators or annotations of this name, on one thread."""
        trace = self.trace
        chosen = trace.of_kind(EventKind.OP, EventKind.ANNOTATION) & (trace.track_of == track)
        return self.pieces(chosen & trace.named(pattern))

    def pieces(self, events: Mask) -> OwnedTimes:
        """Return the times of some events as disjoint pieces."""
        at = np.flatnonzero(events)
        return pieces(self.trace.start_ns[at], self.trace.end_ns[at], at)

    @cached_property
    def host_event(self) -> Ints:
        """Return each event's host event: a kernel's launch, a host event itself; -1 unknown. [event]"""
        trace = self.trace
        on_device = trace.of_kind(EventKind.KERNEL, EventKind.COPY)
        return np.where(on_device, trace.launch_of, np.arange(len(trace)))

    @cached_property
    def phase(self) -> Ints:
        """Return the phase of each event as an index of `PHASES`, -1 unknown; by its launch. [event]"""
        trace, host = self.trace, self.host_event
        known = np.maximum(host, 0)
        track, start_ns = trace.track_of[known], trace.start_ns[known]
        phase = np.where(track == self.training_track, 0, -1)
        for number, pattern in ((1, BACKWARD), (2, OPTIMIZER)):
            for one in np.unique(trace.track_of[trace.named(pattern)]):
                here = np.flatnonzero(track == one)
                phase[here[inside(self.when(pattern, int(one)), start_ns[here])]] = number
        phase[host < 0] = -1
        return phase

    @cached_property
    def _outermost(self) -> dict[int, OwnedTimes]:
        """Return the operators that no other operator contains, by thread."""
        trace = self.trace
        ops = trace.of_kind(EventKind.OP) & ~trace.named(NO_COMPUTATION) & trace.named("::")
        return {int(t): self.pieces(ops & (trace.track_of == t)) for t in np.unique(trace.track_of[ops])}

    @cached_property
    def operator_of(self) -> Ints:
        """Return the outermost operator in which each event or its launch begins, -1 for none. [event]"""
        trace, host = self.trace, self.host_event
        track = trace.track_of[np.maximum(host, 0)]
        found = np.full(len(trace), -1, np.int64)
        for one, of in self._outermost.items():
            here = np.flatnonzero((host >= 0) & (track == one))
            found[here] = owners(of, trace.start_ns[host[here]])
        return found

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
        call = self.trace.collectives.get(event)
        name = self.trace.name(event)
        family = recognized(name).family
        if call is None and family is not None and family.operation:
            return family.operation
        caller = int(self.on_device.call_of[event])
        of_caller = self.trace.collectives.get(caller)
        texts = (
            call.operation if call else "",
            taken_apart(name).function if self.trace.kind[event] == EventKind.KERNEL else name,
            of_caller.operation if of_caller else "",
            self.trace.name(caller) if caller >= 0 else "",
        )
        for text in texts:
            letters = re.sub(r"[^a-z]", "", text.lower())
            if found := next((known for key, known in OPERATIONS.items() if key in letters), ""):
                return found
            if short := re.search(r"_(rs|ag)(?![a-z])", text):
                return {"rs": "reduce_scatter", "ag": "all_gather"}[short[1]]
        return "collective"

    def kernel(self, event: int) -> str:
        """Return the function of a kernel, without its template arguments and parameters."""
        return taken_apart(self.trace.name(event)).function or self.trace.name(event)

    def group(self, event: int) -> str:
        """Return the process group of a communication event; "" where the trace does not have it."""
        call = self.trace.collectives.get(event)
        return call.group if call else ""

    def collective(self, event: int) -> str:
        """Return the operation and the process group of a communication event."""
        group = self.group(event)
        return f"{self.operation(event)} of {group}" if group else self.operation(event)

    def copy_name(self, event: int) -> str:
        """Return the kind of a copy: "Memcpy HtoD"."""
        return self.trace.name(event).partition("(")[0].strip()
