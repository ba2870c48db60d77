"""The speed of a core, from a chain of operations of which each needs the one before.

Its time is inverse to the core's clock: it does not depend on memory, on the width of the core or on how
many threads there are. Hashing by PBKDF2 (RFC 8018) is such a chain, and releases Python's lock. Two clocks
take its time: the thread's own processor time, which stops while another process has the core, and the wall
clock, which does not.
"""

from __future__ import annotations

import hashlib
import time
from typing import NamedTuple

ITERATIONS = 400
"""About 0.2 ms: longer than the clocks' resolution, far shorter than a training step."""

CALIBRATIONS = 50

READS = 3
"""Chains of one reading, of which the fastest counts: the first finds cold caches."""


class ChainTime(NamedTuple):
    """Seconds of one chain: of the thread on its core, and by the wall clock."""

    on_core_s: float
    wall_s: float


def chain_time() -> ChainTime:
    """Run the chain once."""
    wall_s, on_core_s = time.perf_counter(), time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"clock", b"chain", ITERATIONS)
    return ChainTime(time.thread_time() - on_core_s, time.perf_counter() - wall_s)


class CoreSpeed:
    """Speeds relative to the fastest chain that this process has seen when it was made."""

    def __init__(self) -> None:
        self.fastest_s = min(chain_time().on_core_s for _ in range(CALIBRATIONS))

    def read(self) -> ChainTime:
        """Return the relative clock of the core, and the share of it that this process gets: 1 for all."""
        took = min(chain_time() for _ in range(READS))
        return ChainTime(self.fastest_s / took.on_core_s, self.fastest_s / took.wall_s)
