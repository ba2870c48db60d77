"""First fit: each document goes into the first of the open sequences that has room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from harness.bounds import PositiveInt

if TYPE_CHECKING:
    from suites.packing.suite import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`open_sequences`: how many sequences are considered; the oldest is closed when one more is needed."""

    open_sequences: PositiveInt


def first_fit(open_sequences: int, lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Return the documents of each sequence."""
    sequences: list[list[int]] = []
    room: list[int] = []
    for index, length in enumerate(lengths):
        first = max(0, len(room) - open_sequences)
        place = next((i for i in range(first, len(room)) if room[i] >= length), None)
        if place is None:
            sequences.append([])
            room.append(seq_len)
            place = len(room) - 1
        sequences[place].append(index)
        room[place] -= length
    return sequences


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject packed by first fit."""
    return replace(subject, pack=partial(first_fit, settings.open_sequences))
