"""Limit the threads of libraries that start one per core they may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_threads(number: int) -> Iterator[None]:
    """Limit the threads that XLA starts inside the block: it takes one per core that it may use."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(allowed)[:number])
        yield
    finally:
        os.sched_setaffinity(0, allowed)
