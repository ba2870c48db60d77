"""What a stretch of code allocates and releases again, so that a dry run can log it without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite


class Temporaries(NamedTuple):
    """What a stretch of code allocates and releases."""

    storages: int
    events: list[tuple[int, int, OpSite, bool]]  # storage, bytes, site, whether its line is not the caller's


def temporaries_of(events: Sequence[MemoryEvent], before: int, line: str) -> Temporaries | None:
    """Return a stretch's events, its storages numbered from 0; None where it touches or keeps others."""
    held: dict[int, int] = {}
    for one in events:
        held[one.storage] = held.get(one.storage, 0) + one.delta_B
    if any(number < before for number in held) or any(held.values()):
        return None
    count = 1 + max(held, default=before - 1) - before
    return Temporaries(
        count,
        [
            (one.storage - before, one.delta_B, one.place, one.place.line != line)
            for one in events
            if one.delta_B
        ],
    )
