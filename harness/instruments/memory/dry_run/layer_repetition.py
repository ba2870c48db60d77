"""Build the timeline of many uniform layers from the timelines of a few.

One more layer inserts stretches of events into the phases of a step: one into the forward pass, one for each
list of tensors in a foreach optimizer. For more layers, they are inserted as often. What is built so is
compared with a traced depth, event by event, before it is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, takewhile
from typing import NamedTuple

from harness.instruments.memory.memory_timeline import SET_UP, MemoryEvent, OpSite, Timeline

FEWEST, MOST = 2, 5  # layers of the shortest timeline
FEWEST_WITH_RANKS = 3  # prefetching crosses layers


class Pattern(NamedTuple):
    """From which depth on layers repeat, and how releases are matched: see `phases_of`."""

    fewest: int
    by_distance: bool


def timeline_of(
    trace: Callable[[int], Timeline],
    layers: int,
    ranks: int = 1,
    found: list[Pattern] | None = None,
    ahead: Callable[[int], None] = lambda depth: None,
    first: int | None = None,
) -> Timeline:
    """Return the timeline of `layers` uniform layers, from `trace(layers)` of a few where they determine it.

    They do where the timelines of n and n + 1 layers give that of n + 2. Else all layers are traced.
    `found`: gets the pattern; a step that differs in its sizes alone is built by it from n and n + 1 layers.
    `ahead`: is called with a depth that will be traced, before others are. `first`: the fewest layers to try.
    """
    traced: dict[int, Timeline] = {}
    if found:
        fewest, by_distance = found[0]
        if layers <= fewest + 1:
            return trace(layers)
        ahead(fewest + 1)
        traced |= {depth: trace(depth) for depth in (fewest, fewest + 1)}
        with suppress(NotUniformError):
            repetition = Repetition(traced[fewest], traced[fewest + 1], by_distance)
            return repetition.build(layers - fewest)
    if first is None:
        first = FEWEST if ranks == 1 else FEWEST_WITH_RANKS
    if first <= min(MOST, layers - 3) and first + 2 not in traced:
        ahead(first + 2)
    for fewest in range(first, min(MOST, layers - 3) + 1):
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


class Repetition:
    """What one more layer inserts into a timeline; raises `NotUniformError` where it does more."""

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


class NotUniformError(Exception):
    """The longer timeline does more than to insert events into the shorter."""


class Item(NamedTuple):
    """An event without its storage's number.

    Items of two timelines with one `number` are the same event. Where only one of them has exactly such an
    event, its bytes and its shape do not count.
    """

    event: MemoryEvent
    kind: str
    number: int
    allocation: int  # the `number` of what allocated the storage
    found_by: tuple[int, int, int] = (0, 0, 0)
    """The rank by age of the storage that a release is about, among those of its `allocation` that are live.

    It is counted from the newest, from the oldest, and from where the last release was.
    """


Pair = tuple[Item, Item | None]
"""An event with n + 1 layers, and the same one with n; or, where it is inserted, the one a layer before."""


class Phase(NamedTuple):
    """Events in a row of one phase of a step; `steady`: of the last step."""

    name: str
    steady: bool
    items: list[Item]


def phases_of(fewer: Timeline, more: Timeline, by_distance: bool = False) -> list[tuple[Phase, Phase]]:
    """Return the phases of both in pairs; raises `NotUniformError` where they have other phases.

    `by_distance`: releases are the same only at the same distance from the last release of a storage of their
    allocation. This distinguishes, layer by layer, parameters of one shape.
    """
    timelines = (fewer, more)
    allocated = _numbered([_allocations(one) for one in timelines])
    found = [list(_found_by(one, own)) for one, own in zip(timelines, allocated, strict=True)]
    keys = [_releases(*parts, by_distance) for parts in zip(timelines, allocated, found, strict=True)]
    released = _numbered(keys, first=1 + max(map(max, allocated)))
    items = [list(_items(*parts)) for parts in zip(timelines, allocated, released, found, strict=True)]
    left, right = (_phases(own, one.since) for own, one in zip(items, timelines, strict=True))
    if [phase[:2] for phase in left] != [phase[:2] for phase in right]:
        raise NotUniformError("the phases differ")
    return list(zip(left, right, strict=True))


Keys = tuple[Hashable, Hashable]  # an event, with its bytes and shape and without


def _allocations(timeline: Timeline) -> list[Keys]:
    return [
        ((place, kind, stream, delta_B), (place.phase, place.operation, kind, stream))
        for kind, (_, delta_B, place, stream) in zip(
            timeline.kinds, (event for event in timeline.events if event.delta_B > 0), strict=True
        )
    ]


def _found_by(timeline: Timeline, allocated: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Return, for each release, which of the live storages of its allocation it is about."""
    live: dict[int, list[int]] = {}  # storages by the number of their allocation, in order
    last: dict[int, int] = {}  # by the same, where the last release was
    for event in timeline.events:
        alike = live.setdefault(allocated[event.storage], [])
        if event.delta_B > 0:
            alike.append(event.storage)
            continue
        older = bisect_left(alike, event.storage)
        del alike[older]
        yield len(alike) - older, older, older - last.get(allocated[event.storage], 0)
        last[allocated[event.storage]] = older


def _releases(
    timeline: Timeline, allocated: Sequence[int], found: Sequence[tuple[int, int, int]], by_distance: bool
) -> list[Keys]:
    releases = [event for event in timeline.events if event.delta_B < 0]
    return [
        (
            (place, allocated[storage], distance if by_distance else 0),
            (place.phase, place.operation, allocated[storage]),
        )
        for (storage, _, place, _), (_, _, distance) in zip(releases, found, strict=True)
    ]


def _numbered(keys: Sequence[Sequence[Keys]], first: int = 0) -> list[list[int]]:
    """Return a number for each event: equal for exact ones, and for others that only one timeline has."""
    both = set.intersection(*({exact for exact, _ in one} for one in keys))
    numbers: dict[Hashable, int] = {}
    return [
        [numbers.setdefault(exact if exact in both else rough, first + len(numbers)) for exact, rough in one]
        for one in keys
    ]


def _items(
    timeline: Timeline,
    allocated: Sequence[int],
    released: Sequence[int],
    found: Sequence[tuple[int, int, int]],
) -> Iterator[Item]:
    releases = zip(released, found, strict=True)
    for event in timeline.events:
        kind, allocation = timeline.kinds[event.storage], allocated[event.storage]
        if event.delta_B > 0:
            yield Item(event, kind, allocation, allocation)
        else:
            number, found_by = next(releases)
            yield Item(event, kind, number, allocation, found_by)


def _phases(items: Sequence[Item], since: int) -> list[Phase]:
    numbered = groupby(enumerate(items), lambda one: (one[1].event.place.phase, one[0] >= since))
    return [Phase(name, steady, [item for _, item in group]) for (name, steady), group in numbered]


def insertions(fewer: Sequence[int], more: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the stretches of `more`, repetitions, without which it is `fewer`; raises `NotUniformError`."""
    found: list[tuple[int, int, int]] = []  # before which of `fewer`, from which of `more` on, how many
    left = right = 0
    while True:
        same = _run(fewer, left, more, right)
        left, right = left + same, right + same
        if left == len(fewer) and right == len(more):
            return found
        length = _length(fewer, left, more, right)
        found.append((left, right, length))
        right += length


def _length(fewer: Sequence[int], left: int, more: Sequence[int], right: int) -> int:
    """Return how many events `more` repeats from `right` on, so that the longest run of equals follows."""
    most = min(right, len(more) - right - (len(fewer) - left))
    lengths = [
        length
        for length in range(1, most + 1)
        if more[right - length] == more[right]
        and more[right + length : right + length + 1] == fewer[left : left + 1]
        and more[right - length : right] == more[right : right + length]
    ]
    if not lengths:
        raise NotUniformError("an event has no equal")
    return max(lengths, key=lambda length: _run(fewer, left, more, right + length))


def _run(fewer: Sequence[int], left: int, more: Sequence[int], right: int) -> int:
    pairs = zip(fewer[left:], more[right:], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


UPDATE = "optimizer"  # the phase of an update


def with_first_step(timeline: Timeline) -> Timeline | None:
    """Return the timeline with a full first step between set-up and the steady step.

    Both steps request the same, except that the first update also makes the optimizer's state. So a run is
    traced with that update in place of its first step, in half of the time. None where it cannot be made from
    the steady step: an update releases what is not its own, or the steady step keeps a tensor that it made.
    """
    before, steady = timeline.events[: timeline.since], timeline.events[timeline.since :]
    set_up = [one for one in before if one.place.phase == SET_UP]
    first = [one for one in before if one.place.phase != SET_UP]
    if any(one.place.phase.startswith("forward") for one in first):
        return timeline  # its first step is full
    update = [one for one in first if one.place.phase == UPDATE]
    own = {one.storage for one in update if one.delta_B > 0}
    steady_update = [one for one in steady if one.place.phase == UPDATE]
    if _releases_others(update) or _releases_others(steady_update) or _kept(steady):
        return None
    zeros = {one.storage for one in first if one.delta_B < 0} - own  # gradients that the update was given
    passes = [one.place.phase.startswith(("forward", "backward")) for one in steady]
    at = len(passes) - passes[::-1].index(True)  # where the update begins
    full = [*steady[:at], *update, *(one for one in steady[at:] if one.place.phase != UPDATE)]
    numbers = _Numbers(timeline.kinds)
    given = numbers.renumbered([one for one in set_up if one.storage not in zeros])
    again = numbers.renumbered(full)
    repeated = numbers.renumbered(steady)
    return Timeline([*given, *again, *repeated], numbers.kinds, len(given) + len(again), timeline.round_to_B)


def _releases_others(update: Sequence[MemoryEvent]) -> bool:
    own = {one.storage for one in update if one.delta_B > 0}
    return any(one.storage not in own for one in update)


def _kept(steady: Sequence[MemoryEvent]) -> set[int]:
    released = {one.storage for one in steady if one.delta_B < 0}
    return {one.storage for one in steady if one.delta_B > 0} - released


class _Numbers:
    """Numbers storages anew, each allocation as the next one."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds: list[str] = []
        self._before = kinds
        self._now: dict[int, int] = {}

    def renumbered(self, events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
        """Return the events with the numbers that their storages have here."""
        result = []
        for one in events:
            if one.delta_B > 0:
                self._now[one.storage] = len(self.kinds)
                self.kinds.append(self._before[one.storage])
            result.append(one._replace(storage=self._now[one.storage]))
        return result
