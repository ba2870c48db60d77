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

CALIBRATIONS = 50

READS = 3
"""Chains of one reading, of which the fastest counts: the first finds cold caches."""


def chain_s() -> float:
    """Return the seconds of one chain on the core."""
    begin_s = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"clock", b"chain", ITERATIONS)
    return time.thread_time() - begin_s


class CoreSpeed:
    """Clocks of the core relative to the fastest chain that this process saw when it was made."""

    def __init__(self) -> None:
        self._fastest_s = min(chain_s() for _ in range(CALIBRATIONS))

    def relative_clock(self) -> float:
        """Return the clock now, 1 where the core is as fast as at its fastest."""
        return self._fastest_s / min(chain_s() for _ in range(READS))
