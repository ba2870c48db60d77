"""Layouts of a run: powers of two to begin with, and their neighbours, both without data parallelism."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from suites.training.step_time.collectives import Floats
from suites.training.step_time.step import ParallelLayout

EXPERT_RANKS = (0, 2, 3, 4, 6)
"""Powers of two of the ranks that share the experts of a mixture."""

OF_STAGES = ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))
"""Factors of a neighbour's micro-batches per stage and stages per rank: one of both changes at a time."""


class LayoutGrid(NamedTuple):
    """The powers of two that each dimension of a layout may have."""

    columns: tuple[float, ...] = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)
    rows: tuple[float, ...] = (0, 1, 2, 3, 4, 6, 8, 10)
    pp: tuple[float, ...] = tuple(range(9))
    ep: tuple[float, ...] = (0,)
    micro_batches_per_stage: tuple[float, ...] = (0, 1, 3)
    virtual_stages: tuple[float, ...] = (0, 3)


GRID = LayoutGrid()


@cache
def replicas(grid: LayoutGrid) -> ParallelLayout:
    """Return every layout of the grid, as one replica; micro-batches are a multiple of the pipeline's stages.

    More rows than columns are left out: their sums have more bytes, over the slower links.
    """
    cells = np.meshgrid(*(np.rint(np.exp2(np.array(axis, dtype=float))) for axis in grid), indexing="ij")
    columns, rows, pp, ep, per_stage, virtual = (cell.ravel() for cell in cells)
    one = np.ones_like(columns)
    every = ParallelLayout(columns, rows, one, one, pp, ep, per_stage * pp, np.where(pp == 1, 1.0, virtual))
    alike = (pp == 1) & (virtual != virtual.min())
    return every.only((rows <= columns) & ~alike)


@cache
def _factors(step: float) -> tuple[Floats, ...]:
    """Return the factors of columns, rows, stages, micro-batches per stage and stages per rank, (N,) each."""
    cut = (2.0**-step, 1.0, 2.0**step)
    every = [(*sizes, *of_stages) for sizes in product(cut, cut, cut) for of_stages in OF_STAGES]
    return tuple(np.array(axis) for axis in zip(*every, strict=True))


def neighbours(of: ParallelLayout, step: float) -> ParallelLayout:
    """Return the layouts (R, N) around each of some (R,), in steps of 2 to the power of `step`."""
    columns, rows, pp, per_stage, virtual = (
        np.maximum(1.0, np.rint(one[:, None] * factor))
        for one, factor in zip(
            (of.columns, of.rows, of.pp, of.micro_batches / of.pp, of.virtual_stages),
            _factors(step),
            strict=True,
        )
    )
    one = np.ones_like(columns)
    return ParallelLayout(
        columns,
        rows,
        one,
        one,
        pp,
        of.ep[:, None] * one,
        per_stage * pp,
        np.where(pp == 1, 1.0, virtual),
    )
