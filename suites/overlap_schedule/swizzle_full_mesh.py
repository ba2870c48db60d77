"""In each step, a rank exchanges a part of the shard with every peer at once: a mesh uses all its links."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.bounds import PositiveInt
from suites.overlap_schedule.subject import Subject, refuse_indivisible


@dataclass(frozen=True, slots=True)
class Settings:
    """`sub_chunks`: messages per shard, and steps."""

    sub_chunks: PositiveInt


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with parts of all shards exchanged at once.

    Raises ValueError for no parts, `Unavailable` where rows do not divide.
    """
    if settings.sub_chunks < 1:
        raise ValueError(f"swizzle_full_mesh: sub_chunks={settings.sub_chunks}: expected at least 1")
    changed = replace(subject, order="rotated", at_once=True, sub_chunks=settings.sub_chunks, overlapped=True)
    refuse_indivisible(changed)
    return changed
