"""One rank's trace as columns, where an event is one position in every array; Kineto's categories.

Sets of times as sorted arrays: who is busy at each instant, and how two sets overlap.

An instant belongs to the interval that started first of those that are running (of several that started
together, the longest). So any set of intervals becomes disjoint pieces, each with one owner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HOW_TO_RECORD = "record it with torch.profiler.profile(...) and prof.export_chrome_trace(path)"

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

STEP = re.compile(r"^ProfilerStep#(\d+)$")


class EventKind(IntEnum):
    """What an event is, whatever its category is called in the version that wrote it."""

    OP = 0  # an operator on the host
    ANNOTATION = 1  # record_function on the host
    LAUNCH = 2  # a call of the runtime or the driver: cuda*, cu*, hip*
    KERNEL = 3
    COPY = 4  # memcpy and memset on the device
    DEVICE_ANNOTATION = 5
    PYTHON = 6  # with_stack=True
    OTHER = 7


class Track(NamedTuple):
    """A thread of the host, or a stream of a device."""

    process: str
    thread: str
    name: str = ""


class CollectiveCall(NamedTuple):
    """What the trace reports of a collective: empty or -1 where it does not."""

    operation: str
    group: str = ""
    ranks: str = ""
    sequence: int = -1


@dataclass(frozen=True)
class RankTrace:
    """The complete events of one rank, ordered by start, then longest first.

    Times are nanoseconds since the epoch where the trace has its base time, else since an unknown origin.
    `name_of` and `track_of` index `names` and `tracks`. `correlation` links a kernel or a copy with its
    launch, `external_id` with an operator, `sequence` an operator of the backward pass with that of the
    forward pass. Events with the same `shape` have the same grid or input sizes. -1 where there is none.
    """

    path: Path
    rank: int
    world_size: int
    host: str
    devices: tuple[str, ...]
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    start_ns: Ints
    end_ns: Ints
    name_of: Ints
    track_of: Ints
    kind: Ints
    correlation: Ints
    external_id: Ints
    sequence: Ints
    shape: Ints
    collectives: Mapping[int, CollectiveCall]  # by event
    process_groups: Mapping[str, tuple[int, ...]]  # name: its ranks
    unread: frozenset[str]  # categories of a device that are not read

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.start_ns)

    def name(self, event: int) -> str:
        """Return the name of an event."""
        return self.names[int(self.name_of[event])]

    def of_kind(self, *kinds: EventKind) -> Mask:
        """Return which events are of one of these kinds. [event]"""
        return np.isin(self.kind, kinds)

    def named(self, pattern: str) -> Mask:
        """Return which events have a name in which the regular expression is found. [event]"""
        search = re.compile(pattern).search
        found = np.fromiter((search(name) is not None for name in self.names), bool, len(self.names))
        return found[self.name_of]

    @cached_property
    def has_device(self) -> bool:
        """Return whether any kernel of a GPU was recorded."""
        return bool(np.any(self.of_kind(EventKind.KERNEL)))

    @cached_property
    def launch_of(self) -> Ints:
        """Return the launch of each kernel and copy, -1 where there is none. [event]"""
        launches = np.flatnonzero(self.of_kind(EventKind.LAUNCH) & (self.correlation >= 0))
        events = np.flatnonzero(self.of_kind(*ON_DEVICE) & (self.correlation >= 0))
        found = np.full(len(self), -1, np.int64)
        found[events] = having(launches, self.correlation[launches], self.correlation[events])
        return found

    @cached_property
    def host_event(self) -> Ints:
        """Return each event's host event: a kernel's launch, a host event itself; -1 unknown. [event]"""
        return np.where(self.of_kind(*ON_DEVICE), self.launch_of, np.arange(len(self)))

    def pieces(self, events: Mask) -> OwnedTimes:
        """Return the times of some events as disjoint pieces."""
        at = np.flatnonzero(events)
        return pieces(self.start_ns[at], self.end_ns[at], at)

    def around(self, marks: Mask, events: Ints, inner: bool = False) -> Ints:
        """Return the outermost or innermost marked event around each on its track, -1 for none. [events]"""
        known = np.maximum(events, 0)
        track = np.where(events >= 0, self.track_of[known], -1)
        found = np.full(len(events), -1, np.int64)
        for one in np.unique(self.track_of[marks]):
            here, of_track = np.flatnonzero(track == one), marks & (self.track_of == one)
            at_ns = self.start_ns[known[here]]
            if not inner:
                found[here] = owners(self.pieces(of_track), at_ns)
                continue
            nested = np.flatnonzero(of_track)
            place = innermost(self.start_ns[nested], self.end_ns[nested], at_ns)
            found[here] = np.where(place >= 0, nested[place], -1)
        return found


def having(events: Ints, numbers: Ints, wanted: Ints) -> Ints:
    """Return the first of the events that has each wanted number, -1 where none has. [wanted]"""
    if not len(events):
        return np.full(len(wanted), -1, np.int64)
    known, first = np.unique(numbers, return_index=True)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, events[first[at]], -1)


KINDS = {
    **dict.fromkeys(("cpu_op", "operator"), EventKind.OP),  # the second of PyTorch 1.8 to 1.11
    "user_annotation": EventKind.ANNOTATION,
    **dict.fromkeys(("runtime", "driver"), EventKind.LAUNCH),  # the same, and of several accelerators
    **dict.fromkeys(("kernel", "concurrent_kernel", "mtia_ccp_events", "hpu_op"), EventKind.KERNEL),
    **dict.fromkeys(("memcpy", "memset"), EventKind.COPY),
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "python_function": EventKind.PYTHON,
}
"""Category in lower case -> kind."""

ENDINGS = {
    **dict.fromkeys(("_runtime", "_driver"), EventKind.LAUNCH),
    "_kernel": EventKind.KERNEL,
    **dict.fromkeys(("_memcpy", "_memset"), EventKind.COPY),
    "_user_annotation": EventKind.DEVICE_ANNOTATION,
}
"""How categories of accelerators end, after the name of cuda, hip, xpu, mtia, privateuse1 and others."""

HOST_RUNTIMES = ("glow_runtime",)  # categories with such an ending that launch nothing on a device
NO_WORK = ("trace", "overhead", "sync", "event", "range", "insight", "counters", "runtime")
"""How categories end that have a stream and do no work: waits (cuda_sync), and overhead of the profiler."""

ON_DEVICE = (EventKind.KERNEL, EventKind.COPY)

COPY_BY_NAME = re.compile(r"^(dma_|(hip)?mem(cpy|set)\b)", re.IGNORECASE)
"""Kernels of accelerators without a category of their own for copies (MTIA)."""

WAIT_BY_NAME = re.compile(r"^event_(wait|record)$")  # of MTIA's streams: waits for others, or marks


@cache
def kind_of(category: str) -> EventKind:
    """Return what events of a category are; `EventKind.OTHER` for those that are not read."""
    category = category.lower()
    if category in HOST_RUNTIMES:
        return EventKind.OTHER
    ending = next((kind for end, kind in ENDINGS.items() if category.endswith(end)), EventKind.OTHER)
    return KINDS.get(category, ending)


def is_unread(category: str) -> bool:
    """Return whether events of a category with a stream are work of a device that is not read."""
    category = category.lower()
    return kind_of(category) == EventKind.OTHER and category != "" and not category.endswith(NO_WORK)


@lru_cache(maxsize=100_000)
def kind_of_kernel(name: str) -> EventKind:
    """Return what an event in a category of kernels is by its name: a kernel, a copy or a wait."""
    if COPY_BY_NAME.match(name):
        return EventKind.COPY
    return EventKind.OTHER if WAIT_BY_NAME.match(name) else EventKind.KERNEL


class OwnedTimes(NamedTuple):
    """Disjoint times in order, each with its owner: an event's position. [piece]"""

    start_ns: Ints
    end_ns: Ints
    owner: Ints

    @property
    def total_ns(self) -> int:
        """Return the sum of the lengths."""
        return int(np.sum(self.end_ns - self.start_ns))


def pieces(start_ns: Ints, end_ns: Ints, owner: Ints) -> OwnedTimes:
    """Return the union of intervals as disjoint pieces, each owned by the interval that started first."""
    order = np.lexsort((-end_ns, start_ns))
    start_ns, end_ns, owner = start_ns[order], end_ns[order], owner[order]
    busy_until = np.maximum.accumulate(end_ns)
    begin = np.maximum(start_ns, np.concatenate((start_ns[:1], busy_until[:-1])))
    kept = begin < end_ns
    return OwnedTimes(begin[kept], end_ns[kept], owner[kept])


def owners(of: OwnedTimes, at_ns: Ints) -> Ints:
    """Return the owner of each instant, -1 where no piece covers it. [instant]"""
    found = np.full(len(at_ns), -1, np.int64)
    if len(of.start_ns):
        at = np.searchsorted(of.start_ns, at_ns, side="right") - 1
        inside = (at >= 0) & (of.end_ns[np.maximum(at, 0)] > at_ns)
        found[inside] = of.owner[at[inside]]
    return found


def covered_ns(of: OwnedTimes, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return for how long the pieces cover each interval. [interval]"""
    return _before(of, end_ns) - _before(of, start_ns) if len(of.start_ns) else np.zeros_like(start_ns)


def _before(of: OwnedTimes, at_ns: Ints) -> Ints:
    total = np.concatenate(([0], np.cumsum(of.end_ns - of.start_ns)))
    at = np.searchsorted(of.start_ns, at_ns, side="right")
    last = np.maximum(at - 1, 0)
    beyond = np.where(at > 0, np.maximum(of.end_ns[last] - at_ns, 0), 0)
    return np.asarray(total[at] - beyond, np.int64)


def intersection(a: OwnedTimes, b: OwnedTimes) -> OwnedTimes:
    """Return when both sets have a piece; a piece of `a` owns it."""
    at = np.unique(np.concatenate([a.start_ns, a.end_ns, b.start_ns, b.end_ns]))
    owner = owners(a, at[:-1])
    both = (owner >= 0) & (owners(b, at[:-1]) >= 0)
    return OwnedTimes(at[:-1][both], at[1:][both], owner[both])


def inside(of: OwnedTimes, at_ns: Ints) -> Mask:
    """Return which instants the pieces cover. [instant]"""
    return owners(of, at_ns) >= 0


def innermost(start_ns: Ints, end_ns: Ints, at_ns: Ints) -> Ints:
    """Return the innermost interval at each instant, of nested ones in order; -1 for none. [instant]"""
    parent = np.full(len(start_ns), -1, np.int64)
    stack: list[int] = []
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while stack and end_ns[stack[-1]] <= start:
            stack.pop()
        parent[i] = stack[-1] if stack else -1
        if end > start:
            stack.append(i)
    found = np.searchsorted(start_ns, at_ns, side="right") - 1
    while True:
        over = (found >= 0) & (end_ns[np.maximum(found, 0)] <= at_ns)
        if not over.any():
            return np.asarray(found, np.int64)
        found[over] = parent[found[over]]
