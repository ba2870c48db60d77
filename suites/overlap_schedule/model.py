"""The model of overlap, T = max(computation, communication) + first chunk, and closed forms of schedules."""

from __future__ import annotations

from typing import NamedTuple

from suites.overlap_schedule.subject import Subject
from suites.overlap_schedule.workload import Workload
from suites.training.step_time.schedules import overlapped_s


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
