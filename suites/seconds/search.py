"""The best layout of training runs, many at once: a grid of powers of two, then the neighbours of its best.

Sizes: runs R; tries T, each of one layout for one run; layouts L of a grid, N neighbours of one.

Training runs by their computation: model, data and batch; and many inputs as one. Sizes: runs R.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer import TRAINING_FLOP
from suites.seconds.formula import Model, ParallelLayout, StepTime, step_time, total_s
from suites.seconds.workload import LimitsWorkload
from suites.training.step_time.collectives import Amount, Floats

WIDTHS = 12
"""Parameters of a layer over the square of its width: attention has 4 matrices, the MLP 2 of 4 widths."""


class RunShape(NamedTuple):
    """A training run, or arrays over runs. Parameters are those that one token uses."""

    training_flop: Amount
    parameters: Amount
    tokens: Amount
    batch_tokens: Amount
    model: Model

    @property
    def steps(self) -> Amount:
        """Return how many steps the run has."""
        return self.tokens / self.batch_tokens

    @property
    def sequences(self) -> Amount:
        """Return the sequences of one batch."""
        return self.batch_tokens / self.model.seq_len

    def step_budget_s(self, given: LimitsWorkload) -> Amount:
        """Return the seconds that one step may take."""
        return given.run_s / self.steps


def shape_of(given: LimitsWorkload, training_flop: Amount) -> RunShape:
    """Return the run of so many FLOP: 6 per parameter and token, with `tokens_per_parameter` tokens each."""
    parameters = (training_flop / (TRAINING_FLOP * given.tokens_per_parameter)) ** 0.5
    tokens = given.tokens_per_parameter * parameters
    scale = parameters / given.reference_parameters
    layers = np.maximum(1.0, given.reference_layers * scale**given.depth_exponent)
    hidden = (parameters / (WIDTHS * layers)) ** 0.5
    batch = given.batch_tokens * np.maximum(1.0, scale) ** given.batch_exponent
    model = Model(
        layers=layers,
        hidden=hidden,
        qkv=3 * hidden,
        up=4 * hidden,
        intermediate=4 * hidden,
        vocab=0,
        seq_len=given.seq_len,
        sparsity=given.experts / given.experts_per_token,
        experts_per_token=given.experts_per_token,
    )
    return RunShape(training_flop, parameters, tokens, np.minimum(batch, tokens), model)


def latency_flop(given: LimitsWorkload) -> float:
    """Return the largest run that latency of kernels alone allows, by a closed formula.

    However many GPUs share a step, its layers follow one another, and each takes 4 matmuls forward and 8
    backward, each of them at least `kernel_s`. Infinite without such a latency.
    """
    if given.kernel_s == 0:
        return float("inf")
    e, b, scale = given.depth_exponent, given.batch_exponent, given.reference_parameters
    layer_s = 12 * given.kernel_s
    # tokens_per_parameter * N / (batch * (N / scale)^b) * layers * (N / scale)^e * layer_s = run_s
    at_scale_s = given.tokens_per_parameter * scale / given.batch_tokens * given.reference_layers * layer_s
    ratio = given.run_s / at_scale_s
    parameters = scale * ratio ** (1 / (1 + e - b)) if ratio >= 1 else scale * ratio ** (1 / (1 + e))
    return float(TRAINING_FLOP * given.tokens_per_parameter * parameters**2)


def stacked(works: Sequence[LimitsWorkload]) -> LimitsWorkload:
    """Return one workload; an input in which they differ is an array (R,), the others are numbers."""
    changed: dict[str, Any] = {}
    for one in fields(LimitsWorkload):
        values = [getattr(work, one.name) for work in works]
        if any(value != values[0] for value in values):
            changed[one.name] = np.array(values, dtype=float)
    return replace(works[0], **changed)


def taken(stack: LimitsWorkload, runs: NDArray[np.intp]) -> LimitsWorkload:
    """Return the workload of each of these runs, in their order."""
    arrays: dict[str, Any] = {
        one.name: value[runs]
        for one in fields(LimitsWorkload)
        if isinstance(value := getattr(stack, one.name), np.ndarray)
    }
    return replace(stack, **arrays) if arrays else stack


def at(value: Amount, index: NDArray[np.intp]) -> Amount:
    """Return an array's elements, or the number that all have."""
    return value[index] if isinstance(value, np.ndarray) and value.ndim else value


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


MOST_GPUS = 60.0
"""Layouts of more GPUs than this many times the fewest that could do are left out: they use under 1 %."""

Indices = NDArray[np.intp]


class Runs(NamedTuple):
    """Training runs as arrays (R,)."""

    given: LimitsWorkload  # stacked: inputs that differ are arrays
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


def runs_of(given: LimitsWorkload, training_flop: Floats) -> Runs:
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


RUNS_AT_ONCE = 64
"""Runs whose layouts fit into a core's cache together."""

GROWTH = 1.005
"""By how much data parallelism grows at least where a run does not finish: GPUs are found within 0.5 %."""

LEADERS = 16
"""Layouts that are tried to their end first, so that most others are known to be worse at their start."""

STEPS = (1.0, 0.5, 0.25, 1.0, 0.5, 0.25)
"""Powers of two between a layout and its neighbours, in turn."""

NEIGHBOURS = 16
"""Neighbours that are tried on fewer GPUs."""

FEWER = 0.98
"""Share of the GPUs that seem to suffice with which a neighbour begins."""

WORTHWHILE = 1.0005
"""Utilization over the best one's from which on a layout is tried further."""


class BestLayouts(NamedTuple):
    """The best layout of each run (R,) so far.

    `score`: 1 and the utilization where the run finishes in time; else the time that a step may take over
    what it takes.
    """

    score: Floats
    layout: ParallelLayout

    @property
    def utilization(self) -> Floats:
        """Return the utilization, 0 where no layout finishes in time."""
        return np.maximum(0.0, self.score - 1)


def best_layouts(given: LimitsWorkload, training_flop: Floats, grid: LayoutGrid = GRID) -> BestLayouts:
    """Return the layout of each run (R,) that finishes in time with the best utilization."""
    count = len(training_flop)
    chunks = [np.arange(i, min(i + RUNS_AT_ONCE, count)) for i in range(0, count, RUNS_AT_ONCE)]
    found = [_best_of_chunk(runs_of(taken(given, one), training_flop[one]), grid) for one in chunks]
    layout = (np.concatenate(parts) for parts in zip(*(one.layout for one in found), strict=True))
    return BestLayouts(np.concatenate([one.score for one in found]), ParallelLayout(*layout))


def _best_of_chunk(runs: Runs, grid: LayoutGrid) -> BestLayouts:
    """Return the better of two searches, from the best layout with a pipeline and from that without one."""
    every = candidates(runs, grid)
    one, other = (_searched(runs, every.only(part)) for part in (every.layout.pp > 1, every.layout.pp == 1))
    layout = ParallelLayout(
        *(np.where(one.score >= other.score, *both) for both in zip(one.layout, other.layout, strict=True))
    )
    return BestLayouts(np.maximum(one.score, other.score), layout)


def _searched(runs: Runs, tries: Tries) -> BestLayouts:
    """Return the best of some tries and, step by step, of the neighbours of the best so far."""
    nothing = np.zeros(runs.fewest.shape)
    best = BestLayouts(nothing, ParallelLayout(*(nothing + 1 for _ in ParallelLayout._fields)))
    best = tried(runs, tries, best)
    for step in STEPS:
        best = improved(runs, best, step)
    return best


def tried(runs: Runs, tries: Tries, best: BestLayouts) -> BestLayouts:
    """Return the best of `best` and of each layout with as many replicas as finish in time.

    More replicas never use the peak better, so a layout is best with the fewest that finish, and one that is
    no better than the best with too few of them is given up.
    """
    _, used = evaluated(runs, tries)
    first, rest = _leaders(tries, used, LEADERS)
    best = _grown(runs, tries.only(first), best)
    return _grown(runs, tries.only(rest[_better(used, best, tries)[rest]]), best)


def improved(runs: Runs, best: BestLayouts, step: float) -> BestLayouts:
    """Return the best of `best` and of its neighbours, of which the fastest on as many GPUs are tried."""
    tries = around(runs, best.layout, step)
    step_s, used = evaluated(runs, tries)
    can_finish = (step_s <= runs.budget_s[tries.run]) | (tries.layout.dp < most_replicas(runs, tries))
    ahead = np.flatnonzero(_better(used, best, tries) & can_finish)
    first, _ = _leaders(tries.only(ahead), used[ahead], NEIGHBOURS)
    chosen = tries.only(ahead[first])
    share = np.minimum(1.0, step_s[ahead[first]] / runs.budget_s[chosen.run])
    return _grown(runs, chosen.with_dp(whole(FEWER * share * chosen.layout.dp, chosen.layout.ep)), best)


def _leaders(tries: Tries, used: Floats, count: int) -> tuple[Indices, Indices]:
    """Return the places of the tries that use the peak best, so many per run, and those of the others."""
    order = np.lexsort((-used, tries.run))
    leads = np.arange(len(order)) - np.searchsorted(tries.run[order], tries.run[order]) < count
    return order[leads], order[~leads]


def _better(used: Floats, best: BestLayouts, tries: Tries) -> NDArray[np.bool_]:
    return used > best.utilization[tries.run] * WORTHWHILE


def _grown(runs: Runs, tries: Tries, best: BestLayouts) -> BestLayouts:
    """Return the best of `best` and of the tries, whose replicas grow until they finish or are given up."""
    while len(tries.run):
        step_s, used = evaluated(runs, tries)
        share = runs.budget_s[tries.run] / step_s
        best = _best_of(best, tries, np.where(share >= 1, 1 + used, share))
        most = most_replicas(runs, tries)
        more = whole(tries.layout.dp * np.maximum(1 / share, GROWTH), tries.layout.ep)
        unfinished = (share < 1) & _better(used, best, tries) & (tries.layout.dp < most)
        tries = tries.with_dp(np.minimum(more, most)).only(unfinished)
    return best


def _best_of(best: BestLayouts, tries: Tries, score: Floats) -> BestLayouts:
    """Return the best of each run and of the tries for it."""
    most = best.score.copy()
    np.maximum.at(most, tries.run, score)
    winner = np.flatnonzero((score == most[tries.run]) & (score > best.score[tries.run]))
    run = tries.run[winner]
    layout = ParallelLayout(*(one.copy() for one in best.layout))
    for kept, one in zip(layout, tries.layout, strict=True):
        kept[run] = one[winner]
    return BestLayouts(most, layout)


class BestRun(NamedTuple):
    """The layout that finishes a run in time with the best utilization, which is 0 where none does."""

    shape: RunShape
    utilization: float  # of the peak, by 6 FLOP per parameter and token
    step_s: float
    gpus: float
    layout: ParallelLayout | None
    time: StepTime | None


def best_run(given: LimitsWorkload, training_flop: float, grid: LayoutGrid = GRID) -> BestRun:
    """Return the best layout of one run, with its parts."""
    shape = shape_of(given, training_flop)
    best = best_layouts(given, np.array([training_flop]), grid)
    if not best.utilization[0]:
        return BestRun(shape, 0.0, float("nan"), float("nan"), None, None)
    time = step_time(given, shape.model, best.layout, shape.batch_tokens)
    return BestRun(
        shape,
        float(best.utilization[0]),
        float(time.total_s[0]),
        float(best.layout.gpus[0]),
        best.layout,
        StepTime(*np.broadcast_arrays(*time)),
    )
