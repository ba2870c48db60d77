"""The best layout of a training run, out of all in a grid of powers of two."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from suites.limits.collectives import Floats
from suites.limits.run_shape import RunShape, shape_of
from suites.limits.step_time import ParallelLayout, StepTime, step_time
from suites.limits.subject import Workload

MOST_GPUS = 60.0
"""Layouts of more GPUs than this many times the fewest that could do are left out: they use under 1 %."""


class LayoutGrid(NamedTuple):
    """The powers of two that each dimension of a layout may have."""

    columns: tuple[int, ...] = tuple(range(9))
    rows: tuple[int, ...] = tuple(range(9))
    pp: tuple[int, ...] = tuple(range(9))
    dp: tuple[int, ...] = tuple(range(17))
    ep: tuple[int, ...] = (0,)
    micro_batches_per_stage: tuple[int, ...] = (0, 1, 2, 3, 5)
    virtual_stages: tuple[int, ...] = (0, 3)


FINE = LayoutGrid()
COARSE = LayoutGrid(
    rows=(0, 1, 2, 3, 4, 5, 6, 8),
    pp=(0, 1, 2, 3, 4, 5, 6, 8),
    micro_batches_per_stage=(0, 1, 3),
)
"""For many draws: what it loses against FINE is reported next to the results."""


@cache
def layouts(grid: LayoutGrid) -> ParallelLayout:
    """Return every layout of the grid by GPUs; micro-batches are a multiple of the pipeline's stages."""
    axes = (
        grid.columns,
        grid.rows,
        grid.dp,
        grid.pp,
        grid.ep,
        grid.micro_batches_per_stage,
        grid.virtual_stages,
    )
    cells = np.meshgrid(*(np.exp2(np.array(axis, dtype=float)) for axis in axes), indexing="ij")
    columns, rows, dp, pp, ep, per_stage, virtual = (cell.ravel() for cell in cells)
    virtual = np.where(pp == 1, 1.0, virtual)
    every = ParallelLayout(columns, rows, np.ones_like(columns), dp, pp, ep, per_stage * pp, virtual)
    alike = (pp == 1) & (cells[6].ravel() != cells[6].ravel().min())
    every = every.only((ep <= dp) & ~alike)
    return every.only(np.argsort(every.gpus, kind="stable"))


@cache
def gpus_of(grid: LayoutGrid) -> Floats:
    """Return the GPUs of every layout of the grid, in ascending order."""
    return layouts(grid).gpus


EXPERT_RANKS = (0, 2, 3, 4, 6)
"""Powers of two of the ranks that share the experts of a mixture."""


class BestRun(NamedTuple):
    """The layout that finishes a run in time with the best utilization, which is 0 where none does."""

    shape: RunShape
    utilization: float  # of the peak, by 6 FLOP per parameter and token
    step_s: float
    gpus: float
    layout: ParallelLayout | None
    time: StepTime | None


def candidates(given: Workload, shape: RunShape, grid: LayoutGrid) -> ParallelLayout:
    """Return the layouts that batch and layers allow, with enough GPUs and not far too many."""
    grid = grid if given.experts == 1 else grid._replace(ep=EXPERT_RANKS)
    fewest = shape.training_flop / (given.run_s * given.peak_FLOP_per_s * given.efficiency)
    ends = np.searchsorted(gpus_of(grid), (fewest, max(1.0, fewest) * MOST_GPUS * (1 + 1e-9)))
    every = ParallelLayout(*(one[ends[0] : ends[1]] for one in layouts(grid)))
    fits = (
        (every.dp * every.micro_batches <= shape.sequences * (1 + 1e-9))
        & (every.pp * every.virtual_stages <= shape.model.layers)
        & (every.ep <= given.experts)
        & (every.tp <= shape.model.hidden)
    )
    return every.only(fits)


def best_run(given: Workload, training_flop: float, grid: LayoutGrid = FINE) -> BestRun:
    """Return the layout that finishes in time with the best utilization."""
    shape = shape_of(given, training_flop)
    layout = candidates(given, shape, grid)
    none = BestRun(shape, 0.0, float("nan"), float("nan"), None, None)
    if not layout.columns.size:
        return none
    time = step_time(given, shape.model, layout, shape.batch_tokens)
    used = utilizations(given, shape, layout, time.total_s)
    best = int(np.argmax(used))
    if not used[best]:
        return none
    chosen = StepTime(*(one[best : best + 1] for one in np.broadcast_arrays(*time)))
    return BestRun(
        shape,
        float(used[best]),
        float(time.total_s[best]),
        float(layout.gpus[best]),
        layout.only(np.arange(layout.columns.size) == best),
        chosen,
    )


def utilizations(given: Workload, shape: RunShape, layout: ParallelLayout, step_s: Floats) -> Floats:
    """Return the utilization of each layout; 0 where the run does not finish in time."""
    flop = shape.training_flop / shape.steps
    used = flop / (layout.gpus * given.peak_FLOP_per_s * step_s)
    return np.where(step_s <= shape.step_budget_s(given), used, 0.0)
