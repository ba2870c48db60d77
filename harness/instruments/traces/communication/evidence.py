"""Find the events of the device that move data between ranks, by what the trace shows of them.

In this order: a pattern of the user's, the arguments that PyTorch gives a collective, the name of the kernel,
the annotation around it on the device, and the operator that launched it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.instruments.traces.communication.names import KernelRole, recognized
from harness.instruments.traces.intervals import OwnedTimes, innermost, inside, owners, pieces
from harness.instruments.traces.reading.trace import EventKind, Ints, Mask, RankTrace

BACKENDS = r"(nccl|rccl|xccl|hccl|mccl|cncl|ccl|ucc|gloo|mpi):"
"""How annotations of a process group's backend begin."""

CALLS = rf"^(record_param_comms|_?c10d(_functional(_autograd)?)?::|symm_mem::|{BACKENDS})"
"""Operators and annotations of the host that call a collective."""

OWN_CALLS = r"^\w+::\w*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce)"
"""Operators of other libraries that are called as what they do: vllm::all_reduce."""

NO_CALLS = (
    r"copy|^symm_mem::fused|^symm_mem::_?fused|gemm|matmul|norm|^aten::|_autograd::wait|empty|rendezvous"
)
"""Operators with such names that prepare a collective, or do more than one."""

SYMMETRIC = r"^symm_mem::"
"""Operators that copy between GPUs by ordinary copies, also those that multiply at the same time."""

COPIES = r"^aten::(_foreach_)?copy_"
"""Operators in which a symmetric-memory operator copies."""

BETWEEN_DEVICES = r"(?i)PtoP|DtoD|peer|Device -> Device"
"""Copies that may be between GPUs."""

BY_PATTERN, BY_NAME = 1, 3
HOW = ("", "pattern", "arguments", "name", "annotation", "operator")
"""By what an event was recognized; "" for those that were not."""


@dataclass(frozen=True)
class Communication:
    """What of a trace's device is communication; `patterns` are regular expressions of the user's."""

    trace: RankTrace
    patterns: tuple[str, ...] = ()

    @cached_property
    def recognized_by(self) -> Ints:
        """Return for each event how it was recognized as communication, an index of `HOW`. [event]"""
        found = np.zeros(len(self.trace), np.int64)
        for how, mask in enumerate((self._by_user, self._by_arguments, self._by_name), start=1):
            found[(found == 0) & mask] = how
        if not self._on_device.any():
            return found
        for how, mask in ((4, self._by_annotation()), (5, self._by_operator())):
            found[(found == 0) & mask] = how
        return found

    @cached_property
    def under_way(self) -> Mask:
        """Return which events of the device are collectives under way. [event]"""
        return np.asarray(self.recognized_by > 0, np.bool_)

    @cached_property
    def computes_too(self) -> Mask:
        """Return which of them are kernels that compute in the same launch. [event]"""
        by_pattern = self.recognized_by == BY_PATTERN
        return np.asarray(self._roles(KernelRole.BOTH) & ~by_pattern, np.bool_)

    @cached_property
    def _on_device(self) -> Mask:
        return self.trace.of_kind(EventKind.KERNEL, EventKind.COPY)

    @cached_property
    def _by_user(self) -> Mask:
        found = np.zeros(len(self.trace), np.bool_)
        for pattern in self.patterns:
            found |= self.trace.named(pattern)
        return found & self._on_device

    @cached_property
    def _by_arguments(self) -> Mask:
        found = np.zeros(len(self.trace), np.bool_)
        found[list(self.trace.collectives)] = True
        return found & self._on_device

    @cached_property
    def _by_name(self) -> Mask:
        return self._roles(KernelRole.COMMUNICATES, KernelRole.BOTH)

    def _roles(self, *roles: KernelRole) -> Mask:
        kernels = self.trace.of_kind(EventKind.KERNEL)
        used = np.unique(self.trace.name_of[kernels])
        having = [at for at in used.tolist() if recognized(self.trace.names[at]).role in roles]
        return kernels & np.isin(self.trace.name_of, having)

    def _by_annotation(self) -> Mask:
        """Return the events that an annotation of a collective encloses on their stream."""
        trace, found = self.trace, np.zeros(len(self.trace), np.bool_)
        around = trace.of_kind(EventKind.DEVICE_ANNOTATION) & trace.named(f"^{BACKENDS}")
        for track in np.unique(trace.track_of[around]):
            here = np.flatnonzero(around & (trace.track_of == track))
            times = pieces(trace.start_ns[here], trace.end_ns[here], here)
            events = np.flatnonzero(self._movable & (trace.track_of == track))
            owner = owners(times, trace.start_ns[events])
            enclosed = (owner >= 0) & (trace.end_ns[events] <= trace.end_ns[np.maximum(owner, 0)])
            found[events[enclosed]] = True
        return found

    @cached_property
    def _movable(self) -> Mask:
        """Return kernels, and copies that may be between GPUs. [event]"""
        trace = self.trace
        copies = trace.of_kind(EventKind.COPY) & trace.named(BETWEEN_DEVICES)
        return np.asarray(trace.of_kind(EventKind.KERNEL) | copies, np.bool_)

    def _by_operator(self) -> Mask:
        """Return the events whose innermost operator calls a collective, or copies for symmetric memory."""
        trace, found = self.trace, np.zeros(len(self.trace), np.bool_)
        hosts = trace.of_kind(EventKind.OP, EventKind.ANNOTATION)
        calls = hosts & (trace.named(CALLS) | trace.named(OWN_CALLS))
        if not calls.any():
            return found
        moves = calls & ~trace.named(NO_CALLS)
        symmetric = hosts & trace.named(SYMMETRIC)
        copies = hosts & trace.named(COPIES)
        events = np.flatnonzero(self._on_device)
        inner, in_symmetric = self._operators(events, hosts, calls, symmetric)
        known = np.maximum(inner, 0)
        found[events] = (inner >= 0) & moves[known] & (self._movable[events] | symmetric[known])
        by_copy = (inner >= 0) & in_symmetric & (copies[known] | symmetric[known])
        found[events] |= by_copy & (trace.kind[events] == EventKind.COPY) | by_copy & copies[known]
        return found

    @cached_property
    def call_of(self) -> Ints:
        """Return the outermost call of a collective in which each event was launched, -1 for none. [event]"""
        trace = self.trace
        hosts = trace.of_kind(EventKind.OP, EventKind.ANNOTATION)
        calls = hosts & (trace.named(CALLS) | trace.named(OWN_CALLS))
        found = np.full(len(trace), -1, np.int64)
        launch = trace.launch_of
        for track in np.unique(trace.track_of[calls]):
            here = np.flatnonzero((launch >= 0) & (trace.track_of[np.maximum(launch, 0)] == track))
            around = _times(trace, calls & (trace.track_of == track))
            found[here] = owners(around, trace.start_ns[launch[here]])
        return found

    def _operators(self, events: Ints, hosts: Mask, calls: Mask, symmetric: Mask) -> tuple[Ints, Mask]:
        """Return each event's innermost operator within a call, and whether the call is of SYMMETRIC."""
        trace = self.trace
        inner = np.full(len(events), -1, np.int64)
        in_symmetric = np.zeros(len(events), np.bool_)
        launch = trace.launch_of[events]
        at = np.maximum(launch, 0)
        for track in np.unique(trace.track_of[calls]):
            around = _times(trace, calls & (trace.track_of == track))
            here = np.flatnonzero((launch >= 0) & (trace.track_of[at] == track))
            here = here[inside(around, trace.start_ns[at[here]])]
            nested = np.flatnonzero(hosts & (trace.track_of == track))
            nested = nested[inside(around, trace.start_ns[nested])]
            called_ns = trace.start_ns[at[here]]
            place = innermost(trace.start_ns[nested], trace.end_ns[nested], called_ns)
            inner[here[place >= 0]] = nested[place[place >= 0]]
            symmetric_times = _times(trace, symmetric & (trace.track_of == track))
            in_symmetric[here] = inside(symmetric_times, called_ns)
        alone = (inner < 0) & (launch < 0)
        inner[alone] = self._by_external_id(events[alone], hosts)
        in_symmetric[alone] = symmetric[np.maximum(inner[alone], 0)] & (inner[alone] >= 0)
        return inner, in_symmetric

    def _by_external_id(self, events: Ints, hosts: Mask) -> Ints:
        """Return the operators that events without a launch name by their number, -1 for none.

        Older versions write the correlation number in place of it.
        """
        trace = self.trace
        operators = np.flatnonzero(hosts & (trace.external_id >= 0))
        wanted = np.where(
            trace.external_id[events] == trace.correlation[events], -1, trace.external_id[events]
        )
        found = np.full(len(events), -1, np.int64)
        if len(operators):
            operators = operators[np.argsort(trace.external_id[operators], kind="stable")]
            known = trace.external_id[operators]
            place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            same = (known[place] == wanted) & (wanted >= 0)
            found[same] = operators[place[same]]
        return found


def _times(trace: RankTrace, events: Mask) -> OwnedTimes:
    at = np.flatnonzero(events)
    return pieces(trace.start_ns[at], trace.end_ns[at], at)
