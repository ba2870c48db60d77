"""The speed of a core, from a chain of operations of which each needs the one before.

Its time on the core is inverse to the clock: it depends neither on memory nor on how many operations the core
can do at once. Hashing by PBKDF2 (RFC 8018) is such a chain. The thread's own processor time is taken, which
stops while another process has the core.
"""

from __future__ import annotations

import hashlib
import time

ITERATIONS = 400
"""About 0.2 ms: far longer than the clock's resolution, far shorter than a training step."""

READS = 3
"""Chains of one reading, of which the fastest counts: the first finds cold caches."""


def chain_s() -> float:
    """Return the seconds of a chain on this thread's core now; a clock is inverse to it."""
    return min(_one_chain_s() for _ in range(READS))


def _one_chain_s() -> float:
    begin_s = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"clock", b"chain", ITERATIONS)
    return time.thread_time() - begin_s
