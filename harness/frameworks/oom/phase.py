"""In which phase of a training step a traceback ended, and at which line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from harness.frameworks.table import yaml_tree

FRAME = re.compile(
    r"""File "([^"]+)", line (\d+), in (\S+)"""
    r"""(?:\n(?!\s*(?:File "|Traceback|[\w.]*(?:Error|Exception)\b))\s*([^\n]+))?"""
)
PREFIX = re.compile(r"^\s*(?:\[rank\d+\]:|\d+:|\[?[Rr]ank ?\d+\]?:|\([^)]*pid=\d+[^)]*\))\s?", re.MULTILINE)

PHASES: Mapping[str, str] = yaml_tree("oom")["phases"]
OPERATIONS: Mapping[str, str] = yaml_tree("oom")["operations"]
SPECIAL = ("optimizer", "gather", "reduce", "loss")
"""Phases by what their frames look like; of these four, the innermost frame counts."""


class OomPlace(NamedTuple):
    """The place in a training step where a traceback ended."""

    phase: str  # optimizer, gather, reduce, loss, load, backward, forward, or "" where nothing shows it
    recomputed: bool  # within the recomputation of a layer
    operation: str  # attention scores, MLP, ... or ""
    line: str  # the innermost line of code that the traceback shows
    place: str  # its file and line number


def where_of(text: str) -> OomPlace:
    """Return where the traceback before an out-of-memory message ended; empty words where there is none."""
    frames = [tuple(part or "" for part in found) for found in FRAME.findall(PREFIX.sub("", text))]
    if not frames:
        return _of_code(text)
    inner = [" ".join((file, name, code)) for file, _, name, code in frames[-12:]]
    whole = "\n".join(inner)
    phase = _phase(inner)
    operation = next(
        (name for line in reversed(inner) for name, one in OPERATIONS.items() if re.search(one, line)), ""
    )
    file, number, _, code = frames[-1]
    recomputed = bool(re.search(r"recompute|checkpoint\.py|unpack_hook", whole)) and bool(
        re.search(PHASES["backward"], "\n".join(" ".join(one) for one in frames))
    )
    return OomPlace(phase, recomputed, operation, code.strip(), f"{file.rsplit('/', 1)[-1]}:{number}")


CODE = re.compile(r"^[\s│|]*(?:❱|-+>)\s*(\d+)[\s│]+(.*?)[\s│]*$", re.MULTILINE)
"""The marked line of a frame as rich and IPython print it, with its number."""

HEAD = re.compile(r"^[\s│|]*(?:File )?(/[^\s:]+\.py)(?::(\d+))?,? in \S+", re.MULTILINE)
"""The first line of a frame as rich and IPython print it."""


def _of_code(text: str) -> OomPlace:
    """Return the place by a traceback of rich or IPython, which mark a line per frame."""
    marked = CODE.findall(text)
    if not marked:
        return OomPlace("", False, "", "", "")
    lines = text.splitlines()[-60:]
    heads = HEAD.findall(text)
    place = f"{heads[-1][0].rsplit('/', 1)[-1]}:{heads[-1][1] or marked[-1][0]}" if heads else ""
    return OomPlace(_phase(lines), False, "", marked[-1][1].strip(), place)


def _phase(inner: list[str]) -> str:
    """Return the phase: by the innermost frame that shows one of the special ones, else by any frame."""
    for line in reversed(inner):
        for name in SPECIAL:
            if re.search(PHASES[name], line):
                return name
    whole, others = "\n".join(inner), [name for name in PHASES if name not in SPECIAL]
    return next((name for name in others if re.search(PHASES[name], whole)), "")
