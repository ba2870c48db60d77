"""Compare the timelines of two depths of one model, for `layer_repetition`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from harness.instruments.memory.memory_timeline import MemoryEvent, Timeline


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


class Phase(NamedTuple):
    """Events in a row of one phase of a step; `steady`: of the last step."""

    name: str
    steady: bool
    items: list[Item]


class Insertion(NamedTuple):
    """Where the longer of two sequences has more: before `before` of the shorter, from `start` of its own."""

    before: int
    start: int
    length: int


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


Keys = tuple[Hashable, Hashable]
"""An event, with its bytes and shape and without."""


def _allocations(timeline: Timeline) -> list[Keys]:
    """Return the allocations, by storage."""
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
    keys: list[Keys] = []
    releases = (event for event in timeline.events if event.delta_B < 0)
    for event, (_, _, distance) in zip(releases, found, strict=True):
        place, allocation = event.place, allocated[event.storage]
        exact = (place, allocation, distance if by_distance else 0)
        keys.append((exact, (place.phase, place.operation, allocation)))
    return keys


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


def insertions(fewer: Sequence[int], more: Sequence[int]) -> list[Insertion]:
    """Return the stretches of `more` without which it is `fewer`, each a repetition of what is before it.

    Raises `NotUniformError` where there are none such.
    """
    found: list[Insertion] = []
    left = right = 0
    while True:
        same = _run(fewer, left, more, right)
        left, right = left + same, right + same
        if left == len(fewer) and right == len(more):
            return found
        length = _length(fewer, left, more, right)
        found.append(Insertion(left, right, length))
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
    """Return how many events are equal from `left` and `right` on."""
    length = 0
    for one, other in zip(fewer[left:], more[right:], strict=False):
        if one != other:
            break
        length += 1
    return length
