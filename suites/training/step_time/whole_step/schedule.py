"""A pipeline's schedule stepped through time: when each rank runs which pass of which micro-batch.

1F1B and interleaved 1F1B in Megatron-Core's order (core/pipeline_parallel/schedules.py), and all forward
passes before all backward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

PassOrder = Literal["1f1b", "afab"]


class StagePass(NamedTuple):
    """One pass of one micro-batch through one stage; a rank's stages are pp apart."""

    backward: bool
    micro_batch: int
    stage: int


class TimedPass(NamedTuple):
    """A pass, on which rank it ran, and when."""

    work: StagePass
    rank: int
    start_s: float
    end_s: float


def passes_of_rank(
    rank: int, pp: int, micro_batches: int, virtual_stages: int, order: PassOrder
) -> list[StagePass]:
    """Return a rank's passes in the order in which it runs them; raises ValueError where none is defined."""
    if virtual_stages > 1 and micro_batches % pp:
        raise ValueError(f"{micro_batches} micro-batches: interleaved stages take a multiple of pp={pp}")
    total = micro_batches * virtual_stages
    forward = [_nth(index, rank, pp, virtual_stages, False) for index in range(total)]
    backward = [_nth(index, rank, pp, virtual_stages, True) for index in range(total)]
    if order == "afab":
        return forward + backward
    ahead = pp - rank - 1
    if virtual_stages > 1:
        ahead = 2 * ahead + (virtual_stages - 1) * pp
    ahead = min(ahead, total)
    steady = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
    return forward[:ahead] + steady + backward[total - ahead :]


def _nth(index: int, rank: int, pp: int, virtual_stages: int, backward: bool) -> StagePass:
    """Return a rank's n-th forward or backward pass: pp micro-batches through each of its stages in turn."""
    turn = index // pp % virtual_stages
    chunk = virtual_stages - 1 - turn if backward else turn
    micro_batch = index // (pp * virtual_stages) * pp + index % pp
    return StagePass(backward, micro_batch if virtual_stages > 1 else index, chunk * pp + rank)


def stepped(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro_batches: int,
    virtual_stages: int = 1,
    order: PassOrder = "1f1b",
) -> list[TimedPass]:
    """Return every pass with its start and its end; seconds are those of one stage, per rank.

    A forward pass waits for that of the stage before, a backward pass for that of the stage after.
    """
    pp = len(forward_s)
    waiting = [passes_of_rank(rank, pp, micro_batches, virtual_stages, order) for rank in range(pp)]
    last, at, free = pp * virtual_stages - 1, [0] * pp, [0.0] * pp
    ended: dict[StagePass, float] = {}
    done: list[TimedPass] = []
    while len(done) < sum(map(len, waiting)):
        before = len(done)
        for rank in range(pp):
            while at[rank] < len(waiting[rank]):
                work = waiting[rank][at[rank]]
                needed = _needed(work, last)
                if needed is not None and needed not in ended:
                    break
                start = max(free[rank], ended[needed] if needed else 0.0)
                free[rank] = start + (backward_s if work.backward else forward_s)[rank]
                ended[work] = free[rank]
                done.append(TimedPass(work, rank, start, free[rank]))
                at[rank] += 1
        if len(done) == before:
            raise RuntimeError("a schedule in which every rank waits for another")
    return done


def _needed(work: StagePass, last: int) -> StagePass | None:
    """Return the pass whose result a pass needs."""
    if not work.backward:
        return work._replace(stage=work.stage - 1) if work.stage else None
    return work._replace(backward=False) if work.stage == last else work._replace(stage=work.stage + 1)
