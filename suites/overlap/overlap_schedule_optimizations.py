"""The optimizations of the overlap_schedule suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace

from harness.bounds import PositiveInt
from suites.overlap.overlap_schedule import Subject, refuse_indivisible


def swizzle_ring(subject: Subject) -> Subject:
    """Rank r exchanges with peer r + 1, then r + 2, …: a port serves one peer at a time."""
    return replace(subject, order="rotated", at_once=False, overlapped=True)


def swizzle_full_mesh(subject: Subject, sub_chunks: PositiveInt) -> Subject:
    """In each step, a rank exchanges a part of the shard with every peer at once: a mesh uses all its links.

    `sub_chunks`: messages per shard, and steps.
    """
    changed = replace(subject, order="rotated", at_once=True, sub_chunks=sub_chunks, overlapped=True)
    refuse_indivisible(changed)
    return changed


def same_order(subject: Subject) -> Subject:
    """Every rank exchanges with peer 0, then 1, 2, …: on a switch, all of them need the same port at once."""
    return replace(subject, order="same", at_once=False, overlapped=True)
