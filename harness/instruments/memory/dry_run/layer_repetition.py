"""Build the timeline of many uniform layers from the timelines of a few.

One more layer inserts stretches of events into the phases of a step: one into the forward pass, one for each
list of tensors in a foreach optimizer. For more layers, they are inserted as often. What is built so is
compared with a traced depth, event by event, before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline
from harness.instruments.memory.timeline_alignment import (
    Item,
    NotUniformError,
    Phase,
    insertions,
    phases_of,
)

FEWEST = 2
FEWEST_WITH_RANKS = 3  # prefetching crosses layers
MOST = 5
"""Layers of the shortest timeline, least and most."""


class Pattern(NamedTuple):
    """From which depth on layers repeat, and how releases are matched: see `timeline_alignment.phases_of`."""

    fewest: int
    by_distance: bool


def timeline_of(
    trace: Callable[[int], Timeline], layers: int, ranks: int = 1, found: list[Pattern] | None = None
) -> Timeline:
    """Return the timeline of `layers` uniform layers, from `trace(layers)` of a few where they determine it.

    They do where the timelines of n and n + 1 layers give that of n + 2. Else all layers are traced.
    `found`: gets the pattern; a step that differs in its sizes alone is built by it from n and n + 1 layers.
    """
    traced: dict[int, Timeline] = {}
    if found:
        fewest, by_distance = found[0]
        if layers <= fewest + 1:
            return trace(layers)
        traced |= {depth: trace(depth) for depth in (fewest, fewest + 1)}
        with suppress(NotUniformError):
            repetition = Repetition(traced[fewest], traced[fewest + 1], by_distance)
            return repetition.build(layers - fewest)
    for fewest in range(FEWEST if ranks == 1 else FEWEST_WITH_RANKS, min(MOST, layers - 3) + 1):
        for depth in range(fewest, fewest + 3):
            if depth not in traced:
                traced[depth] = trace(depth)
        for by_distance in (False, True):
            try:
                repetition = Repetition(traced[fewest], traced[fewest + 1], by_distance)
                if repetition.build(2) == traced[fewest + 2]:
                    if found is not None:
                        found[:] = [Pattern(fewest, by_distance)]
                    return repetition.build(layers - fewest)
            except NotUniformError:
                continue
    return traced[layers] if layers in traced else trace(layers)


class Slot(NamedTuple):
    """An event at any depth, from what it is with n layers and with one more: bytes and shape are linear."""

    item: Item  # with one more
    fewer: MemoryEvent
    by: int  # of `item.found_by`, what finds a release's storage at any depth

    def place(self, layers: int) -> OpSite:
        """Return its site with n + `layers` layers."""
        was, one_more = self.fewer.place, self.item.event.place
        if was == one_more:
            return was
        if len(was.shape) != len(one_more.shape):
            raise NotUniformError("a shape has another number of dimensions")
        sizes = zip(was.shape, one_more.shape, strict=True)
        return was._replace(shape=tuple(size + layers * (other - size) for size, other in sizes))

    def delta_B(self, layers: int) -> int:
        """Return its bytes with n + `layers` layers; a release's are those of its storage."""
        return self.fewer.delta_B + layers * (self.item.event.delta_B - self.fewer.delta_B)


class Piece(NamedTuple):
    """Events in a row of one phase; `repeated`: once for each layer beyond n."""

    steady: bool
    repeated: bool
    slots: list[Slot]


Pair = tuple[Item, Item | None]
"""An event with n + 1 layers, and the same one with n; or, where it is inserted, the one a layer before."""


class Repetition:
    """What one more layer inserts into a timeline, from those of n and n + 1 layers.

    Raises `NotUniformError` where it does more than to insert.
    """

    def __init__(self, fewer: Timeline, more: Timeline, by_distance: bool = False):
        self._round_to_B = fewer.round_to_B
        stretches = [
            (left.steady, inserted, pairs)
            for left, right in phases_of(fewer, more, by_distance)
            for inserted, pairs in _stretches(left, right)
        ]
        known = {
            _key(item): fewer.event
            for _, inserted, pairs in stretches
            for item, fewer in pairs
            if not inserted and fewer is not None
        }
        self._pieces = [
            Piece(steady, inserted, [_slot(item, before, inserted, known) for item, before in pairs])
            for steady, inserted, pairs in stretches
        ]

    def build(self, layers: int) -> Timeline:
        """Return the timeline of n + `layers` layers."""
        events: list[MemoryEvent] = []
        kinds: list[str] = []
        live = _Live()
        since = None
        for piece in self._pieces:
            if since is None and piece.steady:
                since = len(events)
            slots = [(slot, slot.delta_B(layers), slot.place(layers)) for slot in piece.slots]
            for slot, delta_B, place in slots * (layers if piece.repeated else 1):
                item = slot.item
                if delta_B > 0:
                    storage = live.add(item.allocation, delta_B)
                    kinds.append(item.kind)
                else:
                    storage = live.take(item.allocation, slot.by, item.found_by[slot.by])
                    delta_B = -live.sizes_B[storage]
                events.append(MemoryEvent(storage, delta_B, place, item.event.stream))
        return Timeline(events, kinds, len(events) if since is None else since, self._round_to_B)


class _Live:
    """The live storages by the number of their allocation, and where the last one was released."""

    def __init__(self) -> None:
        self.sizes_B: list[int] = []
        self._alike: dict[int, list[int]] = {}
        self._last: dict[int, int] = {}

    def add(self, allocation: int, size_B: int) -> int:
        """Return the number of a new storage."""
        self._alike.setdefault(allocation, []).append(len(self.sizes_B))
        self.sizes_B.append(size_B)
        return len(self.sizes_B) - 1

    def take(self, allocation: int, by: int, found: int) -> int:
        """Return the storage that `Item.found_by[by]` = `found` stands for, no longer live."""
        alike = self._alike.get(allocation, [])
        at = (len(alike) - 1 - found, found, self._last.get(allocation, 0) + found)[by]
        if not 0 <= at < len(alike):
            raise NotUniformError("nothing is left to release")
        self._last[allocation] = at
        return alike.pop(at)


def _stretches(left: Phase, right: Phase) -> Iterator[tuple[bool, list[Pair]]]:
    """Return the stretches of a phase in order, and whether each is inserted."""
    fewer, more = left.items, right.items
    at_fewer = at_more = 0
    for before, start, length in insertions([one.number for one in fewer], [one.number for one in more]):
        yield False, list(zip(more[at_more:start], fewer[at_fewer:before], strict=True))
        yield True, [(more[at], more[at - length]) for at in range(start, start + length)]
        at_fewer, at_more = before, start + length
    yield False, list(zip(more[at_more:], fewer[at_fewer:], strict=True))


def _slot(item: Item, before: Item | None, inserted: bool, known: Mapping[Key, MemoryEvent]) -> Slot:
    same = [0, 1, 2]
    if before is not None and before.number == item.number:
        same = [by for by in same if before.found_by[by] == item.found_by[by]]
    if not same:
        raise NotUniformError("releases have no order")
    fewer = before.event if before is not None and not inserted else known.get(_key(item))
    if fewer is None:
        raise NotUniformError("an event occurs in the deeper model only")
    return Slot(item, fewer, same[0])


Key = tuple[int, int, OpSite]


def _key(item: Item) -> Key:
    return item.number, item.event.delta_B, item.event.place
