"""The last lines that a process printed, for the reason of its end: a few lines, or a stack."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TAIL_B = 1 << 16
LINE_LENGTH = 300
STACK = "(most recent call first):"
"""End of the line before the frames of a stack that faulthandler prints, innermost first."""


def last(path: Path, count: int) -> str:
    """Return the last `count` lines of the file; "" where there are none.

    Where faulthandler has printed a stack: its innermost frames, and what was printed just before.
    """
    lines = tail(path)
    stacks = [number for number, line in enumerate(lines) if line.endswith(STACK) and "C stack" not in line]
    if not stacks:
        return "; last printed:\n" + "\n".join(lines[-count:]) if lines else ""
    frames = lines[stacks[-1] + 1 :][:count]
    before = lines[: stacks[-1]][len(frames) - count :] if len(frames) < count else []
    printed = "; it had printed:\n" + "\n".join(before) if before else ""
    return "; its stack:\n" + "\n".join(frames) + printed


def tail(path: Path, count: int | None = None) -> list[str]:
    """Return the last `count` lines of the file (None: of its last 64 KiB), without empty ones."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_B, 0))
        text = file.read().decode("utf-8", "replace")
        lines = [line[:LINE_LENGTH] for line in text.splitlines() if line.strip()]
        return lines if count is None else lines[-count:]
    return []
