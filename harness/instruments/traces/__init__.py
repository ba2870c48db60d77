"""Traces of torch.profiler: read, broken down into factors and shares, written as tables and for Perfetto."""

from __future__ import annotations

LONGEST = 280  # characters of a message, so that it has at most 300 with the command's name in front


class TraceError(ValueError):
    """A trace cannot be used: one line, cut in the middle, on what is missing and how to record it."""

    def __init__(self, message: str) -> None:
        """Keep the message as one line."""
        super().__init__(shortened(" ".join(message.split()), LONGEST))


def shortened(text: str, length: int) -> str:
    """Return a text of at most so many characters, at least 3; a longer one is cut in the middle."""
    if len(text) <= length:
        return text
    kept = max(length - 1, 2)
    return f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
