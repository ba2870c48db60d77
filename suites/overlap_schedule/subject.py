"""The overlap_schedule suite's types: a GEMM of tensor parallelism, a published result, and a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.records import Unavailable
from suites.overlap_schedule.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload and the order in which its shards are exchanged.

    The baseline exchanges all shards at once, and does not overlap them with computation.
    """

    workload: Workload
    order: Literal["rotated", "same"] = "rotated"  # rank r begins with peer r + 1, or every rank with peer 0
    at_once: bool = True  # exchange with all peers at once, or with one after the other
    sub_chunks: int = 1  # messages of one shard
    overlapped: bool = False

    @property
    def rate_B_per_s(self) -> float:
        """Return the rate of a port or link; raises `Unavailable` without one."""
        if self.workload.rate_B_per_s is None:
            raise Unavailable("rate_B_per_s: missing; expected bytes per second")
        return self.workload.rate_B_per_s


def refuse_indivisible(subject: Subject) -> None:
    """Raise `Unavailable` where the GEMM's sizes do not divide by ranks or by messages of a shard."""
    given = subject.workload
    if given.kind == "published":
        return
    name, size = ("n", given.n) if given.operation == "allgather_gemm" else ("k", given.k)
    if size % given.ranks:
        raise Unavailable(f"{name}={size}: expected a multiple of the ranks ({given.ranks})")
    rows = given.m // given.ranks
    if rows % subject.sub_chunks:
        raise Unavailable(f"sub_chunks={subject.sub_chunks}: {rows} rows of a shard do not divide by it")
