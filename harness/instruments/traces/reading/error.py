"""The one error of this package."""

from __future__ import annotations

HOW_TO_RECORD = (
    "record it with torch.profiler.profile(schedule=...), prof.step() after each step, "
    "and prof.export_chrome_trace(path) on each rank"
)
"""What a user does to get a trace that can be read."""


class TraceError(ValueError):
    """A trace cannot be used; the message says in one line what is missing and how to record it."""
