"""Rank r exchanges with peer r + 1, then r + 2, …: a port serves one peer at a time, a mesh uses one link."""

from __future__ import annotations

from dataclasses import replace

from suites.overlap_schedule.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with shards exchanged one after the other, by each rank in a rotated order."""
    return replace(subject, order="rotated", at_once=False, overlapped=True)
