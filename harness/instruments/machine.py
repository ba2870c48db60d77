"""What the parent asks of this machine; standard library only."""

import os


def memory_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
