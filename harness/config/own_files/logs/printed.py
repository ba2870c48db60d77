"""Numbers as logs print them."""

from __future__ import annotations

import re
from collections.abc import Mapping

Readings = Mapping[str, float]
"""By metric: step_s, tokens_per_s and FLOP_per_s (per device), tokens_per_s_all, mfu, memory_B, ..."""

ANSI = re.compile(r"\x1b\[[0-9;]*m")
GiB = 2**30
NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"


def number(text: str) -> float:
    """Return a printed number, also with commas for thousands."""
    return float(text.replace(",", ""))


def of_line(line: str, fields: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    """Return what a line has of some fields, each a pattern with the scale of its number."""
    readings = {}
    for metric, (pattern, scale) in fields.items():
        found = re.search(pattern, line)
        if found:
            readings[metric] = number(next(one for one in found.groups() if one)) * scale
    return readings
