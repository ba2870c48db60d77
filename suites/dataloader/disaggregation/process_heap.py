"""How an actor's process keeps memory that it uses again for each batch."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt(3)`."""

REUSED_B = 16 << 20
"""Arrays up to this size come from the heap, which keeps as much free memory at its end."""


def reuse_memory() -> None:
    """Let arrays of up to 16 MiB use freed memory of this process again; without glibc, change nothing.

    With the settings of all loading processes each array of 1 MiB gets fresh pages, and faulting them in
    takes longer than copying what is written into them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, REUSED_B)
        mallopt(M_TRIM_THRESHOLD, REUSED_B)
