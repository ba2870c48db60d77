"""The ledger of a run's bytes: what came and went, where, for what; `instruments.fake_tensors` keeps it."""

from __future__ import annotations

from typing import NamedTuple

from harness.instruments.memory.workspaces import Call, workspaces

KINDS = ("parameters", "gradients", "optimizer_states", "activations", "temporaries", "communication")
"""What a live byte is for. Parameters: buffers too. Activations: made by the forward computation and kept."""


class OpSite(NamedTuple):
    """Where in a step an allocation happened: the same for alike layers, so that walks can be compared."""

    phase: str
    operation: str
    shape: tuple[int, ...]  # of the operation's first result


class Event(NamedTuple):
    """One allocation (`delta_B` > 0) or release of one storage."""

    storage: int
    delta_B: int
    place: OpSite


class Snapshot(NamedTuple):
    """Live bytes at one instant, and what they are for (in the order of `KINDS`; they sum to `total_B`)."""

    total_B: int
    by_kind_B: tuple[int, ...]


class Ledger:
    """Storages by number, each with its kind, and their events in order.

    A storage has one kind for its whole life, whenever that becomes known.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.kinds: list[str] = []  # by storage number
        self._calls: dict[int, Call] = {}  # by number of the event that stands for what the call takes

    def open(self, kind: str) -> int:
        """The number of a new storage."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def enter(self, number: int, delta_B: int, place: OpSite) -> None:
        """Storage `number` took `delta_B` bytes, or gave them back (below zero)."""
        if delta_B:
            self.events.append(Event(number, delta_B, place))

    def withdraw(self, index: int) -> None:
        """Event `index` did not take place; its number stays, for calls are noted by number."""
        self.events[index] = self.events[index]._replace(delta_B=0)

    def record_transient(self, size_B: int, place: OpSite) -> None:
        """An operation took `size_B` within itself and gave them back before it ended."""
        number = self.open("temporaries")
        self.enter(number, size_B, place)
        self.enter(number, -size_B, place)

    def enter_call(self, call: Call, place: OpSite) -> None:
        """An operation took within itself what `harness.instruments.memory.workspaces` will say."""
        self._calls[len(self.events)] = call
        self.events += [Event(self.open("temporaries"), 0, place)] * 2  # taken, given back

    def largest(self, since: int = 0) -> dict[OpSite, Snapshot]:
        """For each place, the moment of most live bytes among the events from number `since` on.

        The first of equals; places in the order met.
        """
        found: dict[OpSite, Snapshot] = {}
        kinds = [KINDS.index(kind) for kind in self.kinds]
        live_B = [0] * len(KINDS)
        total_B = 0
        for index, (number, delta_B, place) in enumerate(self._with_workspaces()):
            live_B[kinds[number]] += delta_B
            total_B += delta_B
            if delta_B > 0 and index >= since and (place not in found or total_B > found[place].total_B):
                found[place] = Snapshot(total_B, tuple(live_B))
        return found

    def _with_workspaces(self) -> list[Event]:
        """The events, with what the host answered for each call."""
        events, answers = list(self.events), workspaces(self._calls.values())
        for index, call in self._calls.items():
            events[index] = events[index]._replace(delta_B=answers[call])
            events[index + 1] = events[index]._replace(delta_B=-answers[call])
        return events
