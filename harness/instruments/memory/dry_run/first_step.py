"""The full first step of a run whose timeline begins with an update alone, made from its steady step.

Both steps request the same, except that the first update also makes the optimizer's state. So a run is traced
with that update in place of its first step, in half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.instruments.memory.memory_timeline import SET_UP, MemoryEvent, Timeline

UPDATE = "optimizer"
"""The phase of an update."""


def with_first_step(timeline: Timeline) -> Timeline | None:
    """Return the timeline with a full first step between set-up and the steady step.

    None where it cannot be made from the steady step: an update releases what is not its own, or the steady
    step keeps a tensor that it made.
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
    """Return whether an update releases storages that it did not allocate."""
    own: set[int] = set()
    for one in update:
        if one.delta_B > 0:
            own.add(one.storage)
        elif one.storage not in own:
            return True
    return False


def _kept(steady: Sequence[MemoryEvent]) -> set[int]:
    """Return the storages that a step allocates and does not release."""
    kept: set[int] = set()
    for one in steady:
        (kept.add if one.delta_B > 0 else kept.discard)(one.storage)
    return kept


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
