"""Layouts that are tried for training runs: which, with how many replicas, and how fast each is.

Sizes: runs R; tries T, each of one layout for one run; layouts L of a grid.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.limits.layout_search.layouts import EXPERT_RANKS, LayoutGrid, neighbours, replicas
from suites.limits.layout_search.run_shape import RunShape, shape_of
from suites.limits.layout_search.stack import at, taken
from suites.limits.subject import Workload
from suites.training.step_time.collectives import Floats
from suites.training.step_time.step import ParallelLayout, total_s

MOST_GPUS = 60.0
"""Layouts of more GPUs than this many times the fewest that could do are left out: they use under 1 %."""

Indices = NDArray[np.intp]


class Runs(NamedTuple):
    """Training runs as arrays (R,)."""

    given: Workload  # stacked: inputs that differ are arrays
    shape: RunShape
    budget_s: Floats  # of one step
    step_flop: Floats
    sequences: Floats  # of a batch
    fewest: Floats  # GPUs that could do, at the efficiency of kernels


class Tries(NamedTuple):
    """Layouts that are tried (T,), and the run of each."""

    run: Indices
    layout: ParallelLayout

    def only(self, chosen: NDArray[Any]) -> Tries:
        """Return the chosen ones."""
        return Tries(self.run[chosen], self.layout.only(chosen))

    def with_dp(self, dp: Floats) -> Tries:
        """Return the same with other numbers of replicas."""
        return Tries(self.run, self.layout._replace(dp=dp))


def runs_of(given: Workload, training_flop: Floats) -> Runs:
    """Return runs of so many FLOP each, of a workload or of a stack of them."""
    shape, like = shape_of(given, training_flop), training_flop.shape
    return Runs(
        given,
        shape,
        np.broadcast_to(shape.step_budget_s(given), like),
        np.broadcast_to(training_flop / shape.steps, like),
        np.broadcast_to(shape.sequences, like),
        np.broadcast_to(training_flop / (given.run_s * given.peak_FLOP_per_s * given.efficiency), like),
    )


def candidates(runs: Runs, grid: LayoutGrid) -> Tries:
    """Return the layouts of a grid that batch and layers allow, with the fewest replicas that could do."""
    every = replicas(grid if runs.given.experts == 1 else grid._replace(ep=EXPERT_RANKS))
    run, which = np.divmod(np.arange(len(runs.fewest) * every.columns.size), every.columns.size)
    tries = Tries(run, every.only(which))
    dp = runs.fewest[run] / tries.layout.gpus
    return allowed(runs, tries.with_dp(whole(dp, tries.layout.ep)))


def around(runs: Runs, best: ParallelLayout, step: float) -> Tries:
    """Return the neighbours of each run's best layout, with as many GPUs if the batch allows."""
    every = neighbours(best, step)
    run = np.repeat(np.arange(len(runs.fewest)), every.columns.shape[1])
    layout = ParallelLayout(*(one.ravel() for one in every))
    tries = Tries(run, layout)
    dp = whole(best.gpus[run] / layout.gpus, layout.ep)
    return allowed(runs, tries.with_dp(np.clip(dp, layout.ep, most_replicas(runs, tries))))


def allowed(runs: Runs, tries: Tries) -> Tries:
    """Return the tries that batch, layers and widths allow, and that have not far too many GPUs."""
    run, layout = tries
    model = runs.shape.model
    return tries.only(
        (layout.dp <= most_replicas(runs, tries))
        & (layout.gpus <= np.maximum(1.0, runs.fewest[run]) * MOST_GPUS)
        & (layout.pp * layout.virtual_stages <= at(model.layers, run))
        & (layout.ep <= runs.given.experts)
        & (layout.tp <= at(model.hidden, run))
        & (layout.rows <= layout.columns)
    )


def most_replicas(runs: Runs, tries: Tries) -> Floats:
    """Return the replicas (T,) among which a batch can be divided: a micro-batch has a sequence at least."""
    replicas_ = runs.sequences[tries.run] * (1 + 1e-9) / tries.layout.micro_batches
    most: Floats = np.floor(replicas_ / tries.layout.ep) * tries.layout.ep
    return most


def whole(dp: Floats, ep: Floats) -> Floats:
    """Return the next larger number of replicas that the ranks of the experts divide."""
    found: Floats = np.maximum(1.0, np.ceil(dp / ep * (1 - 1e-9))) * ep
    return found


def evaluated(runs: Runs, tries: Tries) -> tuple[Floats, Floats]:
    """Return seconds per step and utilization of each try, whether or not the run finishes in time."""
    run, layout = tries
    given, model = taken(runs.given, run), runs.shape.model
    names = ("layers", "hidden", "qkv", "up", "intermediate")
    sizes: dict[str, Any] = {name: at(getattr(model, name), run) for name in names}
    model = model._replace(**sizes)
    step_s = total_s(given, model, layout, at(runs.shape.batch_tokens, run))
    return step_s, runs.step_flop[run] / (layout.gpus * given.peak_FLOP_per_s * step_s)
