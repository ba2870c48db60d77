"""The largest item first, each to the group with the least cost so far (LPT)."""

from __future__ import annotations

from dataclasses import replace

from suites.dataloader_balance.subject import Subject


def apply(subject: Subject) -> Subject:
    """Return the subject with items assigned by the method `greedy`."""
    return replace(subject, method="greedy")
