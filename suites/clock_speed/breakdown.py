"""Where ranks' time goes in synchronous steps: computing, waiting for the slowest rank, communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple


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
    """Return the means of what `on_rank.instants` returned; the first update of the ranks is left out."""
    last_ready_s = [max(all_ready) for all_ready in zip(*(one["ready"] for one in ranks), strict=True)]
    of_ranks, steps_s = [], []
    for one in ranks:
        parts = []
        for step, (before_s, averaged_s) in enumerate(pairwise(one["averaged"]), start=1):
            ready_s, cpu_s = one["ready"][step], one["ready_cpu_s"][step] - one["averaged_cpu_s"][step - 1]
            waiting_s, communication_s = last_ready_s[step] - ready_s, averaged_s - last_ready_s[step]
            parts.append(StepParts(ready_s - before_s, waiting_s, communication_s, cpu_s))
            steps_s.append(averaged_s - before_s)
        of_ranks.append(StepParts(*map(fmean, zip(*parts, strict=True))))
    return MeanParts(fmean(steps_s), tuple(of_ranks))
