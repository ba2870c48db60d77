"""The timeline of a run's bytes: allocations and releases, where and for what; filled by `fake_tensors`."""

from __future__ import annotations

from typing import NamedTuple

from harness.instruments.memory.workspaces import Call, workspaces

KINDS = ("parameters", "gradients", "optimizer_states", "activations", "temporaries", "communication")
"""Kinds of live bytes. Parameters include buffers. Activations: made by the forward pass and kept."""


class OpSite(NamedTuple):
    """Where in a step an allocation happened: the same for uniform layers, so that runs can be compared."""

    phase: str
    operation: str
    shape: tuple[int, ...]  # of the operation's first result


class Event(NamedTuple):
    """One allocation (`delta_B` > 0) or release of one storage."""

    storage: int
    delta_B: int
    place: OpSite


class Snapshot(NamedTuple):
    """Live bytes at one instant, by kind (in the order of `KINDS`; they add up to `total_B`)."""

    total_B: int
    by_kind_B: tuple[int, ...]


class Ledger:
    """Storages by number, each with its kind, and their events in order.

    A storage has one kind for its entire life, whenever that becomes known.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.kinds: list[str] = []  # by storage number
        self._calls: dict[int, Call] = {}  # by number of the event that stands for the call's workspace

    def open(self, kind: str) -> int:
        """Return the number of a new storage."""
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r}; allowed: {', '.join(KINDS)}")
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def enter(self, number: int, delta_B: int, place: OpSite) -> None:
        """Record that storage `number` took `delta_B` bytes, or released them (below zero)."""
        if delta_B:
            self.events.append(Event(number, delta_B, place))

    def withdraw(self, index: int) -> None:
        """Remove event `index`, which did not take place; its number stays, because calls refer to it."""
        self.events[index] = self.events[index]._replace(delta_B=0)

    def record_transient(self, size_B: int, place: OpSite) -> None:
        """Record that an operation took `size_B` inside itself and released them before it ended."""
        number = self.open("temporaries")
        self.enter(number, size_B, place)
        self.enter(number, -size_B, place)

    def enter_call(self, call: Call, place: OpSite) -> None:
        """Record an operation's temporary memory, which `harness.instruments.memory.workspaces` measures
        later."""
        self._calls[len(self.events)] = call
        self.events += [Event(self.open("temporaries"), 0, place)] * 2  # taken, released

    def largest(self, since: int = 0) -> dict[OpSite, Snapshot]:
        """Return, for each site, the snapshot of most live bytes among the events from number `since` on.

        The first of equals; sites in the order met.
        """
        snapshots: dict[OpSite, Snapshot] = {}
        kinds = [KINDS.index(kind) for kind in self.kinds]
        live_B = [0] * len(KINDS)
        total_B = 0
        for index, (number, delta_B, place) in enumerate(self._with_workspaces()):
            live_B[kinds[number]] += delta_B
            total_B += delta_B
            if (
                delta_B > 0
                and index >= since
                and (place not in snapshots or total_B > snapshots[place].total_B)
            ):
                snapshots[place] = Snapshot(total_B, tuple(live_B))
        return snapshots

    def _with_workspaces(self) -> list[Event]:
        """Return the events, with the measured workspace of each call."""
        events, answers = list(self.events), workspaces(self._calls.values())
        for index, call in self._calls.items():
            events[index] = events[index]._replace(delta_B=answers[call])
            events[index + 1] = events[index]._replace(delta_B=-answers[call])
        return events
