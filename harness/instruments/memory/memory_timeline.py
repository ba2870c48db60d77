"""The timeline of a run's bytes: allocations and releases, where and for what; filled by `fake_tensors`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from harness.instruments.memory.workspaces import OperationCall, workspaces

SET_UP = "build"  # the phase before the first step
KINDS = ("parameters", "gradients", "optimizer_states", "activations", "temporaries", "communication")
"""Kinds of live bytes. Parameters include buffers. Activations: made by the forward pass and kept."""


class OpSite(NamedTuple):
    """Where in a step an allocation happened: the same for uniform layers, so that runs can be compared."""

    phase: str
    operation: str
    shape: tuple[int, ...]  # of the operation's first result
    line: str = ""  # of the model's or the trainer's code that called the operation: "file.py:12"


class MemoryEvent(NamedTuple):
    """One allocation (`delta_B` > 0) or release of one storage, in bytes before the allocator's rounding."""

    storage: int
    delta_B: int
    place: OpSite
    stream: int = 0  # of the device; allocators have a pool for each


class PeakByKind(NamedTuple):
    """The most live bytes, by kind (in the order of `KINDS`; they add up to `total_B`)."""

    total_B: int
    by_kind_B: tuple[int, ...]
    event: int  # the number of the allocation that reached it


class Timeline(NamedTuple):
    """All allocations and releases of a run, in order.

    Storages are numbered as they are allocated; each is allocated once, and released at most once. A storage
    that was resized in the run is another one from then on. Of several that one operation releases, the
    oldest is the first: in a run their order can depend on addresses (autocast's copies of weights).

    Set-up contributes what is still live at its end: scripts build models on the host or without data
    (`device="meta"`), and put their shards on the device.
    """

    events: list[MemoryEvent]
    kinds: list[str]  # by storage
    since: int  # the first event of the steady step
    round_to_B: int  # the allocator's granularity

    def sizes_B(self) -> list[int]:
        """Return each event's bytes as the allocator counts them."""
        step_B, deltas_B = self.round_to_B, [event.delta_B for event in self.events]
        return [-(-one // step_B) * step_B if one > 0 else one // step_B * step_B for one in deltas_B]

    def requests(self) -> Iterator[tuple[int, int, int]]:
        """Return what a device's allocator gets, as (storage, bytes, stream)."""
        return ((storage, delta_B, stream) for storage, delta_B, _, stream in self.events)

    def peak(self) -> PeakByKind:
        """Return the first instant of most live bytes in the steady step."""
        live_B, total_B, most = dict.fromkeys(KINDS, 0), 0, PeakByKind(-1, (), -1)
        for index, (event, size_B) in enumerate(zip(self.events, self.sizes_B(), strict=True)):
            live_B[self.kinds[event.storage]] += size_B
            total_B += size_B
            if size_B > 0 and total_B > most.total_B and index >= self.since:
                most = PeakByKind(total_B, tuple(live_B.values()), index)
        return most


class Ledger:
    """Storages by number, each with one kind for its entire life, and their events in order."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self.kinds: list[str] = []  # by storage number
        self.stream = 0  # whose pool serves the allocations from here on
        self._calls: dict[int, OperationCall] = {}  # by the number of the event for the call's workspace

    def open(self, kind: str) -> int:
        """Return the number of a new storage."""
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r}; allowed: {', '.join(KINDS)}")
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def enter(self, number: int, delta_B: int, place: OpSite) -> None:
        """Record that storage `number` took `delta_B` bytes, or released them (below zero)."""
        if delta_B:
            self.events.append(MemoryEvent(number, delta_B, place, self.stream))

    def withdraw(self, index: int) -> None:
        """Remove event `index`, which did not take place; its number stays, because calls refer to it."""
        self.events[index] = self.events[index]._replace(delta_B=0)

    def record_transient(self, size_B: int, place: OpSite) -> None:
        """Record that an operation took `size_B` inside itself and released them before it ended."""
        number = self.open("temporaries")
        self.enter(number, size_B, place)
        self.enter(number, -size_B, place)

    def enter_call(self, call: OperationCall, place: OpSite) -> None:
        """Record an operation's temporary memory, which `memory.workspaces` measures later."""
        self._calls[len(self.events)] = call
        self.events += [MemoryEvent(self.open("temporaries"), 0, place, self.stream)] * 2  # taken, released

    def timeline(self, since: int = 0, round_to_B: int = 1) -> Timeline:
        """Return the run so far, whose steady step begins with this ledger's event `since`."""
        live: dict[int, tuple[int, int, int]] = {}  # by storage here: number there, bytes, stream
        events: list[MemoryEvent] = []
        kinds: list[str] = []
        start = None
        for index, (storage, delta_B, place, stream) in enumerate(self._with_workspaces()):
            if index == since:
                start = len(events)
            if not delta_B:
                continue
            number, before_B, on_stream = live.pop(storage, (-1, 0, 0))
            if before_B + delta_B:  # a resized storage is allocated anew, then the old one is released
                live[storage] = (len(kinds), before_B + delta_B, stream)
                events.append(MemoryEvent(len(kinds), before_B + delta_B, place, stream))
                kinds.append(self.kinds[storage])
            if before_B:
                events.append(MemoryEvent(number, -before_B, place, on_stream))
        start = len(events) if start is None else start
        before, kinds, steady = _kept_by_set_up(events[:start], kinds, events[start:])
        return Timeline(_in_order(before) + _in_order(steady), kinds, len(before), round_to_B)

    def _with_workspaces(self) -> list[MemoryEvent]:
        events, answers = list(self.events), workspaces(self._calls.values())
        for index, call in self._calls.items():
            events[index] = events[index]._replace(delta_B=answers[call])
            events[index + 1] = events[index]._replace(delta_B=-answers[call])
        return events


def _kept_by_set_up(
    before: Sequence[MemoryEvent], kinds: Sequence[str], steady: Sequence[MemoryEvent]
) -> tuple[list[MemoryEvent], list[str], list[MemoryEvent]]:
    """Return all three without the storages that set-up releases, and the others numbered anew."""
    released = {event.storage for event in before if event.place.phase == SET_UP and event.delta_B < 0}
    left = [storage for storage in range(len(kinds)) if storage not in released]
    numbers = {storage: number for number, storage in enumerate(left)}
    first, second = (
        [one._replace(storage=numbers[one.storage]) for one in events if one.storage in numbers]
        for events in (before, steady)
    )
    return first, [kinds[storage] for storage in left], second


def _in_order(events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
    """Return the events with releases in a row at one place ordered by storage."""
    ordered: list[MemoryEvent] = []
    for (released, _), group in groupby(events, lambda event: (event.delta_B < 0, event.place)):
        together = list(group)
        ordered += sorted(together) if released else together
    return ordered


ZLIB = b"\x78"  # zlib's first byte (RFC 1950); MessagePack begins a list of five with another
Encoded = tuple[int, int, list[str], list[OpSite], list[tuple[int, int, int, int]]]
"""Steady step, granularity, kinds, places; and of each event its storage, bytes, place and stream."""


def to_bytes(timeline: Timeline, compressed: bool = True) -> bytes:
    """Return a timeline as MessagePack, by default compressed by zlib."""
    numbers: dict[OpSite, int] = {}
    events = [
        (storage, delta_B, numbers.setdefault(place, len(numbers)), stream)
        for storage, delta_B, place, stream in timeline.events
    ]
    whole: Encoded = (timeline.since, timeline.round_to_B, timeline.kinds, list(numbers), events)
    content = msgspec.msgpack.encode(whole)
    return zlib.compress(content) if compressed else content


def from_bytes(content: bytes) -> Timeline:
    """Return the timeline of `to_bytes`; raises ValueError for anything else."""
    try:
        if content[:1] == ZLIB:
            content = zlib.decompress(content)
        since, round_to_B, kinds, places, listed = msgspec.msgpack.decode(content, type=Encoded)
        events = [
            MemoryEvent(storage, delta_B, places[place], stream) for storage, delta_B, place, stream in listed
        ]
    except (zlib.error, msgspec.MsgspecError, IndexError) as error:
        raise ValueError(f"no timeline: {error}") from error
    return Timeline(events, kinds, since, round_to_B)
