"""The memory model of kernels on symmetric memory, and a checker that finds what it leaves to chance.

The model is the release/acquire part of PTX's memory consistency model (PTX ISA, "Memory Consistency Model")
and of C++'s ([intro.races] of C++20), at system scope:

- A thread is one program of one launch of one rank. Its accesses are ordered as it makes them. How a GPU's
threads share the work of a program is not examined, nor are the barriers between these.
- Launches of a rank are ordered, as on a stream, to which belongs what the host does between two of them.
- A store that is no atomic may be delayed without limit, and others may see several stores in any order.
- An atomic with release publishes all that its thread did before, and all that was visible to the thread. An
atomic with acquire that reads this value makes all of it visible to its own thread. So does one that reads
the value of a later read-modify-write, if only those came between (a release sequence).
- Relaxed atomics order nothing. Atomics of one place have one order and never race with each other, unless
they are of different ranks and the scope of one is not the system, or their bytes overlap in part.
- Nothing else orders accesses: neither collectives of the process group, nor the order in which the programs
of a launch begin.

This order is called *happens before*. Two accesses of the same bytes by different threads, at least one of
them a store and not both atomics, are a race unless one happens before the other. Without races, every load
has one store that it can see, so all executions that the model allows have the same result (S. Adve and M.
Hill, "Weak ordering: a new definition", 1990).

One execution shows all permutations of delayed stores: two accesses can change places exactly if neither
happens before the other. So `MemoryOrder` builds *happens before* from recorded accesses (`memory_trace`) by
vector clocks, and looks at every pair. This requires that every wait sees the same store in all executions:
each is examined for another store that it could see, or that could replace the value first. What atomic loads
return is taken as it was recorded; where that decides what a kernel does next, other executions may differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from suites.overlap.symmetric.memory_trace import HOST, SPACE_B, Access

ACQUIRING = ("acquire", "acq_rel")
RELEASING = ("release", "acq_rel")
WRITES = ("store", "exchange", "update")

Thread = tuple[int, int, int]
Range = tuple[int, int]


class Race(NamedTuple):
    """Two accesses that nothing orders, at least one of them a store."""

    first: Access
    second: Access
    ranges: list[Range]
    visible: list[Access | None]
    """If one is a load: the stores that it may see, None for the value before all stores."""

    def __str__(self) -> str:
        seen = ""
        if self.visible:
            stores = dict.fromkeys(
                f"the {one.kind} at {one.source} of rank {one.rank}" if one else "the initial value"
                for one in self.visible
            )
            seen = f"; the load may see {' or '.join(stores)}"
        return f"race of {_words(self.first)} with {_words(self.second)}, {_where(self.ranges[0])}{seen}"


class UncertainWait(NamedTuple):
    """A wait that other executions may satisfy by another store than the recorded one, or not at all."""

    wait: Access
    why: str
    store: Access

    def __str__(self) -> str:
        begin = f"{_words(self.wait)} for {self.wait.value}, {_where(self.wait.ranges[0])},"
        return f"{begin} {self.why} {_words(self.store)}, of {self.store.value}"


class _Published(NamedTuple):
    """What an acquire that reads the last atomic store of a place makes visible: its release sequence."""

    clock: Any
    ranks: frozenset[int]
    system: bool


class MemoryOrder:
    """The order of the accesses of all ranks: the recordings of each, in the order that it made them."""

    def __init__(self, recorded: Iterable[Sequence[Access]]) -> None:
        self.accesses = _merged(recorded)
        numbers = {thread: i for i, thread in enumerate(dict.fromkeys(map(_thread, self.accesses)))}
        self._of = numpy.array([numbers[_thread(one)] for one in self.accesses], dtype=numpy.int64)
        self._nth = numpy.zeros(len(self.accesses), dtype=numpy.int64)
        self._clocks: list[Any] = []
        self._unsatisfied: list[Any] = []  # the clocks without what the access itself acquires
        self._follow(len(numbers))

    def races(self) -> list[Race]:
        """Return the races; of those between the same two lines and ranks, the first."""
        found: dict[tuple[int, int], list[Range]] = defaultdict(list)
        for group, ranges in self._groups():
            before = self._before(group)
            racing = self._conflicts(group) & ~before & ~before.T
            for i, j in zip(*numpy.nonzero(numpy.triu(racing, 1)), strict=True):
                found[group[i], group[j]] += ranges
        races: dict[Any, Race] = {}
        for (i, j), ranges in sorted(found.items()):
            first, second = self.accesses[i], self.accesses[j]
            lines = frozenset((one.source, one.kind, one.semantic, one.rank) for one in (first, second))
            if lines not in races:
                loads = [k for k in (i, j) if self.accesses[k].kind not in WRITES]
                visible = self.visible(loads[0], ranges[0][0]) if loads else []
                races[lines] = Race(first, second, ranges, visible)
        return list(races.values())

    def visible(self, load: int, place: int) -> list[Access | None]:
        """Return the stores that a load (its index) may see at a place; None: the value before all stores."""
        stores = [
            i for i, one in enumerate(self.accesses)
            if i != load and one.kind in WRITES and any(begin <= place < end for begin, end in one.ranges)
        ]  # fmt: skip
        before, earlier = self._before([*stores, load]), self._before_unsatisfied(stores, load)
        replaced = (before[:-1, :-1] & earlier).any(axis=1)
        visible = ~before[-1, :-1] & ~replaced
        initial = [] if earlier.any() else [None]
        return [*initial, *(self.accesses[i] for i, may in zip(stores, visible, strict=True) if may)]

    def uncertain_waits(self) -> list[UncertainWait]:
        """Return the waits that other executions may satisfy otherwise; of the same lines and ranks one.

        Where there is none, all executions have this order, and no races if this one has none.
        """
        found: dict[Any, UncertainWait] = {}
        stores = self._stores_of_signals()
        for i, wait in enumerate(self.accesses):
            if wait.kind == "poll":
                for why, store in self._uncertain(i, stores[wait.ranges[0]]):
                    lines = (why, wait.source, wait.rank, store.source, store.rank)
                    found.setdefault(lines, UncertainWait(wait, why, store))
        return list(found.values())

    def _uncertain(self, index: int, stores: list[int]) -> Iterator[tuple[str, Access]]:
        wait, accesses = self.accesses[index], [self.accesses[i] for i in stores]
        before, earlier = self._before([*stores, index]), self._before_unsatisfied(stores, index)
        came = [k for k, one in enumerate(accesses) if one.semantic != "plain" and stores[k] < index]
        seen = came[-1] if came else None
        if seen is not None and wait.value == 0 and not earlier.any():
            yield "may see the initial value instead of", accesses[seen]
        for k, store in enumerate(accesses):
            if k == seen or before[-1, k] or store.semantic == "plain":
                continue  # a plain store that is not ordered is a race
            if store.value == wait.value and not (before[k, :-1] & earlier).any():
                yield "may as well see", store
            elif seen is None or k not in came:
                yield "may not see its value before it is replaced by", store
            elif not before[k, seen] and not store.kind == accesses[seen].kind == "update":
                yield "may not see its value because it is followed by", store

    def _stores_of_signals(self) -> dict[Range, list[int]]:
        """Return the stores to every place that is waited for."""
        stores: dict[Range, list[int]] = {one.ranges[0]: [] for one in self.accesses if one.kind == "poll"}
        signals = sorted(stores)
        for i, one in enumerate(self.accesses):
            for begin, end in one.ranges if one.kind in WRITES else ():
                for signal in signals[bisect_left(signals, (begin, begin)) :]:
                    if signal[0] >= end:
                        break
                    stores[signal].append(i)
        return stores

    def _follow(self, threads: int) -> None:
        """Find the vector clock of each access: of each thread, how many accesses happen before."""
        counts = numpy.zeros(threads, dtype=numpy.int32)
        stage: dict[int, tuple[int, bool]] = {}  # of each rank: a launch, or the host before it
        begin: dict[int, Any] = defaultdict(lambda: numpy.zeros(threads, dtype=numpy.int32))
        current: dict[int, dict[int, Any]] = defaultdict(dict)  # the clocks of the stage's threads
        published: dict[Range, _Published] = {}
        last: dict[Range, int] = {}
        for i, one in enumerate(self.accesses):
            thread, place = int(self._of[i]), one.ranges[0]
            if stage.get(one.rank) != (one.launch, one.program != HOST):
                for other, clock in current[one.rank].items():
                    begin[one.rank] = numpy.maximum(begin[one.rank], _with(clock, other, counts[other]))
                stage[one.rank], current[one.rank] = (one.launch, one.program != HOST), {}
            counts[thread] += 1
            self._nth[i] = counts[thread]
            clock = current[one.rank].get(thread, begin[one.rank])
            self._unsatisfied.append(clock)
            sequence = published.get(place)
            if one.semantic in ACQUIRING and one.kind != "store" and sequence and _reaches(sequence, one):
                clock = numpy.maximum(clock, sequence.clock)
            current[one.rank][thread] = clock
            self._clocks.append(clock)
            if one.semantic == "plain" or one.kind not in WRITES:
                continue
            # An update needs what it reads; an exchange may come first in other executions.
            behind = place in last and bool(self._before([last[place], i])[0, 1])
            if not (one.kind == "update" or (one.kind == "exchange" and behind)):
                sequence = None
            if one.semantic in RELEASING:
                own = _Published(_with(clock, thread, counts[thread]), frozenset((one.rank,)), True)
                sequence = _joined(sequence, own) if sequence else own
            if sequence:
                ranks, system = sequence.ranks | {one.rank}, sequence.system and one.scope == "sys"
                published[place] = _Published(sequence.clock, ranks, system)
            else:
                published.pop(place, None)
            last[place] = i

    def _before(self, group: Sequence[int]) -> Any:
        """Return (first, second): whether the first access happens before the second."""
        thread, nth = self._of[list(group)], self._nth[list(group)]
        clocks = numpy.stack([self._clocks[i] for i in group])
        same = thread[:, None] == thread[None, :]
        return numpy.where(same, nth[:, None] < nth[None, :], nth[:, None] <= clocks[:, thread].T)

    def _before_unsatisfied(self, group: Sequence[int], load: int) -> Any:
        """Return whether accesses happen before the load, apart from what it acquires."""
        thread, nth = self._of[list(group)], self._nth[list(group)]
        same = thread == self._of[load]
        return numpy.where(same, nth < self._nth[load], nth <= self._unsatisfied[load][thread])

    def _conflicts(self, group: Sequence[int]) -> Any:
        """Return (first, second): whether accesses to common bytes race if they are not ordered."""
        accesses = [self.accesses[i] for i in group]
        writes = numpy.array([one.kind in WRITES for one in accesses])
        atomic = numpy.array([one.semantic != "plain" for one in accesses])
        system = numpy.array([one.scope == "sys" for one in accesses])
        rank = numpy.array([one.rank for one in accesses])
        place = numpy.array([one.ranges[0] for one in accesses])
        reach = (rank[:, None] == rank) | (system[:, None] & system)
        coherent = atomic[:, None] & atomic & (place[:, None] == place).all(axis=2) & reach
        return (writes[:, None] | writes) & ~coherent

    def _groups(self) -> Iterator[tuple[list[int], list[Range]]]:
        """Return accesses to common bytes, with these bytes, where several threads access and one stores."""
        items = [(*ends, i) for i, one in enumerate(self.accesses) for ends in one.ranges]
        begins, ends, _ = numpy.array(items, dtype=numpy.int64).reshape(-1, 3).T
        bounds = numpy.unique(numpy.concatenate([begins, ends]))
        spans = zip(numpy.searchsorted(bounds, begins), numpy.searchsorted(bounds, ends), strict=True)
        segments: list[list[int]] = [[] for _ in bounds]
        for (_, _, i), (first, behind) in zip(items, spans, strict=True):
            for segment in range(first, behind):
                segments[segment].append(i)
        groups: dict[tuple[int, ...], list[Range]] = defaultdict(list)
        for segment, group in enumerate(segments):
            if group:
                groups[tuple(group)].append((int(bounds[segment]), int(bounds[segment + 1])))
        for accesses, ranges in groups.items():
            stored = any(self.accesses[i].kind in WRITES for i in accesses)
            if stored and len({int(self._of[i]) for i in accesses}) > 1:
                yield list(accesses), ranges


def _merged(recorded: Iterable[Sequence[Access]]) -> list[Access]:
    """Return all accesses: each rank's in its own order, and all atomics by their numbers."""
    keyed: list[tuple[int, Access]] = []
    for accesses in recorded:
        last = 0
        for one in accesses:
            last = max(last, one.number)
            keyed.append((last, one))
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]


def _thread(access: Access) -> Thread:
    return access[:3]


def _with(clock: Any, thread: int, count: int) -> Any:
    changed = clock.copy()
    changed[thread] = count
    return changed


def _joined(first: _Published, second: _Published) -> _Published:
    clock = numpy.maximum(first.clock, second.clock)
    return _Published(clock, first.ranks | second.ranks, first.system and second.system)


def _reaches(sequence: _Published, reader: Access) -> bool:
    return sequence.ranks == {reader.rank} or (sequence.system and reader.scope == "sys")


def _words(access: Access) -> str:
    kind = access.kind if access.semantic == "plain" else f"{access.semantic} atomic {access.kind}"
    program = "host" if access.program == HOST else f"program {access.program}"
    where = f"rank {access.rank}, launch {access.launch}, {program}"
    return f"the {kind} at {access.source} ({where})"


def _where(places: Range) -> str:
    """Return where a range of places is."""
    (space, first), (_, last) = divmod(places[0], SPACE_B), divmod(places[1] - 1, SPACE_B)
    rank, other = divmod(space, 2)
    return f"bytes {first} to {last} of rank {rank}'s {'other memory' if other else 'heap'}"
