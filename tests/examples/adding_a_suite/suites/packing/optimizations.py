"""The optimizations of the packing suite as functions of their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from harness.bounds import PositiveInt

if TYPE_CHECKING:
    from suites.packing.suite import Subject


def first_fit(subject: Subject, open_sequences: PositiveInt) -> Subject:
    """First fit: each document goes into the first of the open sequences that has room for it.

    `open_sequences`: how many sequences are considered; the oldest is closed when one more is needed.
    """
    return replace(subject, pack=partial(packed, open_sequences))


def packed(open_sequences: int, lengths: Sequence[int], seq_len: int) -> list[list[int]]:
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
