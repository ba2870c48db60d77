"""The model of overlap, T = max(computation, communication) + first chunk, and closed forms of schedules.

The overlap_schedule suite's types: a GEMM of tensor parallelism, a published result, and a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.records import Unavailable
from suites.overlap_schedule.workload import Workload
from suites.training.step_time.collectives import overlapped_s


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


class OverlapModel(NamedTuple):
    """Computation and communication of one operation, and into how many chunks the overlap divides them."""

    compute_s: float
    communication_s: float
    chunks: int

    @property
    def sequential_s(self) -> float:
        """Return the time of one after the other."""
        return self.compute_s + self.communication_s

    @property
    def longer_s(self) -> float:
        """Return the time that no overlap can go below."""
        return max(self.compute_s, self.communication_s)

    @property
    def overlapped_s(self) -> float:
        """Return the longer of both, plus the first chunk of the shorter: a pipeline of two stages."""
        return float(overlapped_s(self.compute_s, self.communication_s, 1 / self.chunks))

    @property
    def speedup(self) -> float:
        """Return how much faster overlapped is than sequential."""
        return self.sequential_s / self.overlapped_s


def model_of(workload: Workload, share: float | None = None) -> OverlapModel:
    """Return a workload's model at a share of the peak, by default its own; raises `Unavailable`."""
    return OverlapModel(workload.compute_time_s(share), workload.communication_time_s, workload.parts)


def closed_form_s(subject: Subject) -> float | None:
    """Return what the schedule takes by a formula of its own; None where there is none.

    N chunks of the other ranks arrive (or leave) in groups, each group `group_s` after the one before, and
    the GEMM takes `each_s` per chunk. The latest is the first or the last group, since times between are
    linear.
    """
    given = subject.workload
    compute_s, others = given.compute_time_s(), given.ranks - 1
    group_s = _group_s(subject)
    if group_s is None:
        return None
    if not subject.overlapped:
        groups = subject.sub_chunks * (1 if subject.at_once else others)
        return compute_s + groups * group_s
    each_s = compute_s / (given.ranks * subject.sub_chunks)
    size = others if subject.at_once else 1  # chunks of a group
    chunks = others * subject.sub_chunks
    first_s = group_s + chunks * each_s
    last_s = chunks // size * group_s + size * each_s
    return max(compute_s, first_s, last_s)


def _group_s(subject: Subject) -> float | None:
    """Return the seconds of one step of messages; None where messages of different steps share links."""
    given = subject.workload
    switch, pushed = given.topology == "switch", given.operation == "gemm_reduce_scatter"
    sharing = 1
    if switch and subject.at_once:
        if pushed and subject.overlapped:
            return None  # chunks leave one by one, and those that are late share the port with others
        sharing = given.ranks - 1
    elif switch and subject.order == "same":
        return None
    return given.message_s + sharing * given.shard_B / subject.sub_chunks / subject.rate_B_per_s
