"""How long synchronous steps take at given speeds, and where ranks' time goes in them.

A step ends when the slowest rank has computed its part and gradients are averaged. Speeds are relative to
full speed, at which a rank computes for `work_s`. Closed formulas give a step's time, and so does a walk
through a schedule of speeds. On the ranks, `instants` runs updates without barriers.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from harness.instruments.distributed.rank_worker import RankState
from suites.profiling.workload import ClockSpeedWorkload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques
from suites.training.trainer import Trainer


class StepParts(NamedTuple):
    """One rank in one step, from one averaging of gradients to the next; the three times add up to it."""

    computing_s: float
    waiting_s: float
    communication_s: float
    computing_cpu_s: float  # processor time used while computing


class MeanParts(NamedTuple):
    """Means over steps: of the step, of each rank's parts, and of all ranks' together."""

    step_s: float
    ranks: tuple[StepParts, ...]

    @property
    def waiting_s(self) -> float:
        """Return the mean waiting time of a rank in a step."""
        return fmean(one.waiting_s for one in self.ranks)

    @property
    def communication_s(self) -> float:
        """Return the mean time of a rank in a step from the last arrival to the average."""
        return fmean(one.communication_s for one in self.ranks)


def mean_parts(ranks: Sequence[Mapping[str, Sequence[float]]]) -> MeanParts:
    """Return the means of what `instants` returned; the first update of the ranks is left out."""
    ready_s, ready_cpu_s, averaged_s, averaged_cpu_s = (
        np.array([one[name] for one in ranks])
        for name in ("ready", "ready_cpu_s", "averaged", "averaged_cpu_s")
    )  # each of [rank, update]
    last_ready_s, ready_s = ready_s.max(axis=0)[1:], ready_s[:, 1:]
    parts = (
        ready_s - averaged_s[:, :-1],
        last_ready_s - ready_s,
        averaged_s[:, 1:] - last_ready_s,
        ready_cpu_s[:, 1:] - averaged_cpu_s[:, :-1],
    )
    means = np.mean(parts, axis=2).T.tolist()
    return MeanParts(float(np.diff(averaged_s).mean()), tuple(StepParts(*one) for one in means))


SHARED: Techniques = [{"attention": {"kernel": "flash"}}]
"""Techniques that plain PyTorch has too where a variant is compared with it."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast ranks compute: all at full speed, one slow, all at the mean, or each in turn slow and full.

    `dwell_s`: how long an alternating rank keeps a speed. `together`: all ranks alternate at once; else each
    by itself.
    """

    pattern: Literal["full", "one_slow", "steady", "alternating"] = "full"
    dwell_s: float = 0.0
    together: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: the same training step at other speeds."""

    workload: ClockSpeedWorkload
    seed: int
    step: TrainingStep
    speeds: Speeds = Speeds()


class Dwell(NamedTuple):
    """From `begin_s` on, until the next dwell, ranks compute at these speeds."""

    begin_s: float
    speeds: tuple[float, ...]


def dwells(how: Speeds, ranks: int, slow: float, seed: int) -> Iterator[tuple[float, ...]]:
    """Return the ranks' speeds, dwell after dwell without end.

    Alternating ranks are slow in one of every two dwells, in random order, so that each has the mean speed.
    """
    mean = (1 + slow) / 2
    steady = {"full": (1.0,) * ranks, "one_slow": (slow,) + (1.0,) * (ranks - 1), "steady": (mean,) * ranks}
    random = Random(seed)
    while True:
        if how.pattern != "alternating":
            yield steady[how.pattern]
            continue
        first = [random.choice((slow, 1.0)) for _ in range(1 if how.together else ranks)]
        first *= ranks if how.together else 1
        yield tuple(first)
        yield tuple(1 + slow - one for one in first)


def slowdowns(how: Speeds, ranks: int, slow: float) -> dict[str, float]:
    """Return by what factor a step without communication is longer than at full speed, by method.

    Where ranks alternate each by itself, in long dwells all are fast in 1 of 2^ranks, and a step has the slow
    speed in the others. In short ones each rank's speed averages out within a step.
    """
    mean = (1 + slow) / 2
    if how.pattern == "alternating" and not how.together:
        all_fast = 0.5**ranks
        return {"long dwells": 1 / (all_fast + (1 - all_fast) * slow), "short dwells": 1 / mean}
    closed = {"full": 1.0, "one_slow": 1 / slow, "steady": 1 / mean, "alternating": 1 / mean}
    return {"closed formula": closed[how.pattern]}


def loss_as_waiting(ranks: int) -> float:
    """Return which share of a slow rank's loss, over all ranks, the others spend waiting: (N - 1) / N."""
    return (ranks - 1) / ranks


def step_ends_s(
    schedule: Sequence[Dwell], begin_s: float, work_s: Sequence[float], communication_s: float, count: int
) -> list[float]:
    """Return when each of `count` steps from `begin_s` on ends; the last dwell lasts for ever."""
    ends_s = []
    for _ in range(count):
        arrived_s = max(computed_s(schedule, rank, begin_s, work) for rank, work in enumerate(work_s))
        begin_s = arrived_s + communication_s
        ends_s.append(begin_s)
    return ends_s


def computed_s(schedule: Sequence[Dwell], rank: int, begin_s: float, work_s: float) -> float:
    """Return when a rank has done `work_s` of work that it begins at `begin_s`."""
    now_s, left_s = begin_s, work_s
    number = max(bisect_right(schedule, begin_s, key=lambda dwell: dwell.begin_s) - 1, 0)
    while number + 1 < len(schedule):
        speed, until_s = schedule[number].speeds[rank], schedule[number + 1].begin_s
        if (until_s - now_s) * speed >= left_s:
            break
        left_s -= (until_s - now_s) * speed
        now_s, number = until_s, number + 1
    return now_s + left_s / schedule[number].speeds[rank]


def watch_arrivals(state: RankState, key: str) -> None:
    """Note when the trainer's gradients are ready to be averaged, and the processor time used until then."""
    trainer: Trainer = state[key]
    arrivals: list[tuple[float, float]] = []

    def noted(bucket: Any) -> Any:
        arrivals.append((time.monotonic(), time.process_time()))
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model: Any = trainer.model
    model.register_comm_hook(None, lambda _, bucket: noted(bucket))
    state[f"arrivals of {key}"] = arrivals


def instants(state: RankState, key: str, count: int) -> dict[str, list[float]]:
    """Run updates one after the other; return, for each, when gradients were ready and when averaged.

    Times are by time.monotonic, which all processes share, and the processor time of this one until then.
    """
    trainer: Trainer = state[key]
    arrivals: list[tuple[float, float]] = state[f"arrivals of {key}"]
    batches = [trainer.text_batches() for _ in range(count)]
    found: dict[str, list[float]] = {"ready": [], "ready_cpu_s": [], "averaged": [], "averaged_cpu_s": []}
    dist.barrier()
    for batch in batches:
        trainer.accumulate(batch, len(batch))  # returns once gradients are averaged
        found["averaged"].append(time.monotonic())
        found["averaged_cpu_s"].append(time.process_time())
        ready_s, ready_cpu_s = arrivals[-1]
        found["ready"].append(ready_s)
        found["ready_cpu_s"].append(ready_cpu_s)
        trainer.update()
    return found
