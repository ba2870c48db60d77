"""The best layout, the walls and their band, compared with brute force and closed forms."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from suites.seconds import search, walls
from suites.seconds.formula import ParallelLayout, step_time
from suites.seconds.workload import LimitsWorkload

RUN = LimitsWorkload(kind="curve")

SMALL = search.LayoutGrid((0, 2, 3), (0, 1), (0, 2), (0,), (0, 2), (0, 1))

HALVES = tuple(i / 2 for i in range(19))
FINER = search.LayoutGrid(
    (*HALVES, 10, 12), (*HALVES[:13], 8, 10), (*HALVES[:13], 7, 8), (0,), (0, 1, 3), (0, 2, 3, 5)
)


def brute_force(given, flop, grid):
    """Return the best utilization of all layouts of the grid, each with every number of replicas."""
    shape, best = search.shape_of(given, flop), 0.0
    for c, r, p, e, m, v in product(*grid):
        columns, rows, pp, ep, per_stage = (2.0**power for power in (c, r, p, e, m))
        virtual = 2.0**v if pp > 1 else 1.0
        most = int(shape.sequences / (per_stage * pp))
        dp = np.arange(ep, most + 1, ep)
        if rows > columns or pp * virtual > shape.model.layers or ep > given.experts or not len(dp):
            continue
        sizes = (columns, rows, 1.0, dp, pp, ep, per_stage * pp, virtual)
        layout = ParallelLayout(*(np.broadcast_to(np.asarray(one, float), dp.shape) for one in sizes))
        step_s = step_time(given, shape.model, layout, shape.batch_tokens).total_s
        used = flop / shape.steps / (layout.gpus * given.peak_FLOP_per_s * step_s)
        best = max(best, float(np.max(np.where(step_s * shape.steps <= given.run_s, used, 0.0))))
    return best


MIXTURE = replace(RUN, experts=64, experts_per_token=2, batch_tokens=2.0**22)
CASES = [
    *((RUN, flop, SMALL) for flop in (1e22, 1e24, 3e24, 1e26, 1e29)),
    *((replace(RUN, overlap=1.0), flop, SMALL) for flop in (1e24, 1e26)),
    (MIXTURE, 1e24, SMALL._replace(ep=(0, 2, 3, 4, 6))),
]


@pytest.mark.parametrize(("work", "flop", "grid"), CASES)
def test_the_best_of_a_grid_is_that_of_trying_each(work, flop, grid, monkeypatch):
    """With every number of replicas, of which the search finds the fewest within half a percent."""
    monkeypatch.setattr(search, "STEPS", ())
    best = brute_force(work, flop, grid)
    found = search.best_run(work, flop, grid)
    assert 0.993 * best <= found.utilization <= best * (1 + 1e-9)
    if best:
        assert found.gpus == found.layout.gpus[0]
        assert found.step_s <= work.run_s / found.shape.steps
    if work is MIXTURE:
        assert 1 < found.layout.ep[0] <= 64
        assert found.layout.dp[0] % found.layout.ep[0] == 0


def test_many_runs_at_once_are_those_of_each_alone():
    works = [RUN, replace(RUN, overlap=1.0, node_size=64), replace(RUN, batch_exponent=0.5, run_s=1.5e7)]
    flop = np.array([1e25, 1e27, 1e28])
    every = search.best_layouts(search.stacked(works), flop)
    for i, work in enumerate(works):
        alone = search.best_layouts(work, flop[i : i + 1])
        assert every.score[i] == alone.score[0]
        assert [one[i] for one in every.layout] == [one[0] for one in alone.layout]
    second = search.taken(search.stacked(works), np.array([1]))
    assert (second.overlap, second.node_size, second.run_s) == (1.0, 64.0, RUN.run_s)


@pytest.mark.parametrize("changes", [{}, {"overlap": 1.0, "batch_exponent": 0.5}], ids=str)
def test_walls_depend_neither_on_the_grid_nor_on_the_points_of_the_curve(changes):
    """Against a grid with half powers of two. 1 % of utilization is up to 10 % of the wall, in FLOP."""
    work = replace(RUN, **changes)
    coarse, fine, many = (
        walls.walls_of(
            work, walls.computes(points), walls.curves(work, 1, walls.computes(points), grid), grid
        )
        for points, grid in ((2, search.GRID), (2, FINER), (7, search.GRID))
    )
    for other in (fine, many):
        assert coarse.begins == pytest.approx(other.begins, rel=0.08)
        assert coarse.ends == pytest.approx(other.ends, rel=0.08)
    assert coarse.best == pytest.approx(fine.best, rel=0.01)


def test_a_run_has_six_flop_per_parameter_and_token_and_grows_as_its_exponents_say():
    shape = search.shape_of(RUN, 5.76e23)
    assert shape.parameters == pytest.approx((5.76e23 / 120) ** 0.5)
    assert 6 * shape.parameters * shape.tokens == pytest.approx(5.76e23)
    assert 12 * shape.model.layers * shape.model.hidden**2 == pytest.approx(shape.parameters)
    assert shape.steps * shape.batch_tokens == pytest.approx(shape.tokens)
    larger = search.shape_of(RUN, 5.76e23 * 64)
    assert larger.model.layers / shape.model.layers == pytest.approx(2, rel=1e-3)  # 8 times the parameters
    assert larger.batch_tokens == shape.batch_tokens
    at = 120 * 405e9**2
    base = search.shape_of(RUN, at)
    assert base.model.layers == pytest.approx(126)
    work = replace(RUN, batch_exponent=0.5, depth_exponent=0.0)
    grown = search.shape_of(work, at * 100**2)
    assert grown.batch_tokens == pytest.approx(10 * base.batch_tokens)
    assert grown.model.layers == 126
    assert search.shape_of(work, at / 100).batch_tokens == base.batch_tokens  # never smaller than stated


def test_latency_alone_ends_runs_where_its_steps_take_all_the_time():
    for depth, batch, run_s in product((0.0, 1 / 3), (0.0, 0.5), (1e5, 7.884e6)):
        work = replace(RUN, depth_exponent=depth, batch_exponent=batch, run_s=run_s)
        most = search.latency_flop(work)
        shape = search.shape_of(work, most)
        assert shape.steps * shape.model.layers * 12 * work.kernel_s == pytest.approx(run_s)
        assert search.latency_flop(replace(work, kernel_s=0.0)) == float("inf")
        assert search.best_run(work, most * 1.01).utilization == 0
    # 2e31 was re-derived of 120 layers at any size, 4 matmuls of 9 us per layer
    flat = replace(RUN, depth_exponent=0.0, reference_layers=120.0, batch_tokens=2.0**22)
    most = search.latency_flop(replace(flat, kernel_s=4 * 9e-6 / 12, run_s=7.9e6))
    assert most == pytest.approx(1.8e31, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_rank_correlation_is_scipys(pairs):
    one, other = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    varied = len(set(one)) > 1 and len(set(other)) > 1
    expected = spearmanr(one, other).statistic if varied else 0
    assert walls.rank_correlation(one, other) == pytest.approx(expected)


@pytest.mark.parametrize("stops", [np.inf, 7e27])
def test_walls_are_where_a_curve_crosses_their_levels(stops, monkeypatch):
    """A power law from a plateau on crosses each level at a place that a logarithm gives, and may stop."""

    def walls_at(flop, stops):
        def best_layouts(given, flop, grid=search.GRID):
            used = np.where(flop <= 1e26, 0.5, 0.5 * (flop / 1e26) ** -0.5)
            layout = ParallelLayout(*(np.ones_like(flop) for _ in ParallelLayout._fields))
            return search.BestLayouts(np.where(flop <= stops, 1 + used, 0.5), layout)

        monkeypatch.setattr(walls, "best_layouts", best_layouts)
        return walls.Walls(*(one[0] for one in walls.walls_of(RUN, flop, walls.curves(RUN, 1, flop))))

    found = walls_at(np.logspace(24, 30, 13), stops)
    assert found.best == 0.5
    assert found.begins == pytest.approx(1e26 * walls.FALLEN**-2)
    level_at = 1e26 * (walls.LOW / 0.5) ** -2
    assert found.ends == (pytest.approx(level_at) if level_at < stops else pytest.approx(stops, rel=0.05))
    assert walls_at(np.logspace(24, 26, 3), stops) == (1e26, 1e26, 0.5)
    assert walls_at(np.logspace(24, 27, 4), stops=0) == (1e24, 1e24, 0.0)
