"""One rank's trace as columns, where an event is one position in every array; Kineto's categories."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HOW_TO_RECORD = "record it with torch.profiler.profile(...) and prof.export_chrome_trace(path)"
"""What a user does to get a trace that can be read."""


LONGEST = 280
"""Characters of a message, so that it has at most 300 with the command's name in front."""


class TraceError(ValueError):
    """A trace cannot be used; the message says in one line what is missing and how to record it.

    A longer message is cut in the middle.
    """

    def __init__(self, message: str) -> None:
        """Keep the message as one line."""
        super().__init__(shortened(" ".join(message.split()), LONGEST))


def shortened(text: str, length: int) -> str:
    """Return a text of at most so many characters, at least 3; a longer one is cut in the middle."""
    if len(text) <= length:
        return text
    kept = max(length - 1, 2)
    return f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"


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
    elements: int = -1
    dtype: str = ""


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
    backend: str
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
    unread: Mapping[str, int]  # category of a device that is not read: its events

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
        return found[self.name_of] if len(self.names) else np.zeros(0, bool)

    @cached_property
    def has_device(self) -> bool:
        """Return whether any kernel of a GPU was recorded."""
        return bool(np.any(self.of_kind(EventKind.KERNEL)))

    @cached_property
    def launch_of(self) -> Ints:
        """Return the launch of each kernel and copy, -1 where there is none. [event]"""
        launches = np.flatnonzero(self.of_kind(EventKind.LAUNCH) & (self.correlation >= 0))
        launches = launches[np.argsort(self.correlation[launches], kind="stable")]
        found = np.full(len(self), -1, np.int64)
        on_device = self.of_kind(EventKind.KERNEL) | self.of_kind(EventKind.COPY)
        events = np.flatnonzero(on_device & (self.correlation >= 0))
        if not len(launches) or not len(events):
            return found
        known = self.correlation[launches]
        at = np.minimum(np.searchsorted(known, self.correlation[events]), len(launches) - 1)
        same = known[at] == self.correlation[events]
        found[events[same]] = launches[at[same]]
        return found


KINDS = {
    "cpu_op": EventKind.OP,
    "operator": EventKind.OP,  # PyTorch 1.8 to 1.11
    "user_annotation": EventKind.ANNOTATION,
    "runtime": EventKind.LAUNCH,  # PyTorch 1.8 to 1.11, and where accelerators share one name
    "driver": EventKind.LAUNCH,
    "kernel": EventKind.KERNEL,
    "concurrent_kernel": EventKind.KERNEL,
    "mtia_ccp_events": EventKind.KERNEL,
    "hpu_op": EventKind.KERNEL,
    "memcpy": EventKind.COPY,
    "memset": EventKind.COPY,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "python_function": EventKind.PYTHON,
}
"""Category in lower case -> kind."""

ENDINGS = {
    "_runtime": EventKind.LAUNCH,  # of cuda, hip, xpu, mtia, privateuse1 and others
    "_driver": EventKind.LAUNCH,
    "_kernel": EventKind.KERNEL,
    "_memcpy": EventKind.COPY,
    "_memset": EventKind.COPY,
    "_user_annotation": EventKind.DEVICE_ANNOTATION,
}
"""How categories of accelerators end, after the accelerator's name."""

HOST_RUNTIMES = ("glow_runtime",)
"""Categories with such an ending that launch nothing on a device."""

NO_WORK = ("trace", "overhead", "sync", "event", "range", "insight", "counters", "runtime")
"""How categories end that have a stream and do no work: waits (cuda_sync), and overhead of the profiler."""

ON_DEVICE = (EventKind.KERNEL, EventKind.COPY)

COPY_BY_NAME = re.compile(r"^(dma_|(hip)?mem(cpy|set)\b)", re.IGNORECASE)
"""Kernels of accelerators without a category of their own for copies (MTIA)."""

WAIT_BY_NAME = re.compile(r"^event_(wait|record)$")
"""Entries on a stream of MTIA in which the device waits for another stream, or marks a time."""


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


def kind_of_kernel(name: str) -> EventKind:
    """Return what an event in a category of kernels is by its name: a kernel, a copy or a wait."""
    if COPY_BY_NAME.match(name):
        return EventKind.COPY
    return EventKind.OTHER if WAIT_BY_NAME.match(name) else EventKind.KERNEL
