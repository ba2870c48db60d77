"""Items are dealt in random order, which changes nothing for documents that arrive independently."""

from __future__ import annotations

from dataclasses import replace

from suites.dataloader_balance.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with items assigned by the method `random`."""
    return replace(subject, method="random")
