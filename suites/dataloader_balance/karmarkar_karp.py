"""The largest differencing method of Karmarkar and Karp, for any number of groups."""

from __future__ import annotations

from dataclasses import replace

from suites.dataloader_balance.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with items assigned by the method `karmarkar_karp`."""
    return replace(subject, method="karmarkar_karp")
