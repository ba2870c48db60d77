"""The best layout, the walls and their band, compared with brute force and closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from suites.seconds import search
from suites.seconds import walls as walls_module
from suites.seconds.formula import ParallelLayout, step_time
from suites.seconds.limits import searched
from suites.seconds.search import (
    GRID,
    BestLayouts,
    LayoutGrid,
    best_layouts,
    best_run,
    candidates,
    evaluated,
    latency_flop,
    runs_of,
    shape_of,
    stacked,
    taken,
)
from suites.seconds.walls import (
    CHOICES,
    FALLEN,
    LOW,
    RANGES,
    Walls,
    chosen,
    combinations,
    computes,
    curves,
    drawn,
    drawn_workloads,
    method_of,
    one_at_a_time,
    rank_correlation,
    walls_of,
    with_input,
)
from suites.seconds.workload import LimitsWorkload
from suites.training.step_time.collectives import Floats

RUN = LimitsWorkload(kind="curve")

GRID_TOLERANCE = 0.08
"""Of a wall, in FLOP: 1 % of utilization is up to 10 % of the wall where utilization begins to fall."""

SMALL = LayoutGrid((0, 2, 3), (0, 1), (0, 2), (0,), (0, 2), (0, 1))


def halves(most: int) -> tuple[float, ...]:
    return tuple(i / 2 for i in range(2 * most + 1))


FINER = LayoutGrid(
    (*halves(9), 10, 12), (*halves(6), 8, 10), (*halves(6), 7, 8), (0,), (0, 1, 3), (0, 2, 3, 5)
)
"""Half powers of two; the search then goes on from its best, as it does from that of GRID."""


def brute_force(given: LimitsWorkload, flop: float, grid: LayoutGrid) -> float:
    """Return the best utilization of all layouts of the grid, each with every number of replicas."""
    shape, best = shape_of(given, flop), 0.0
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


@pytest.mark.parametrize("flop", [1e22, 1e24, 3e24, 1e26, 1e29])
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_the_best_of_a_grid_is_that_of_trying_each(
    flop: float, overlap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every number of replicas, of which the search finds the fewest within half a percent."""
    monkeypatch.setattr(search, "STEPS", ())
    work = replace(RUN, overlap=overlap)
    best = brute_force(work, flop, SMALL)
    found = best_run(work, flop, SMALL)
    assert 0.993 * best <= found.utilization <= best * (1 + 1e-9)
    if best:
        assert found.layout is not None
        assert found.gpus == found.layout.gpus[0]
        assert found.step_s <= work.run_s / found.shape.steps


def test_experts_are_shared_where_that_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "STEPS", ())
    work = replace(RUN, experts=64, experts_per_token=2, batch_tokens=2.0**22)
    best = brute_force(work, 1e24, SMALL._replace(ep=(0, 2, 3, 4, 6)))
    found = best_run(work, 1e24, SMALL)
    assert 0.993 * best <= found.utilization <= best * (1 + 1e-9)
    assert found.layout is not None, best
    assert 1 < found.layout.ep[0] <= 64
    assert found.layout.dp[0] % found.layout.ep[0] == 0


def test_neighbours_of_the_best_are_never_worse_and_can_be_run() -> None:
    for flop in (1e25, 1e27, 1e28):
        found = best_run(RUN, flop)
        assert found.layout is not None
        layout = ParallelLayout(*(one[0] for one in found.layout))
        assert found.utilization >= brute_force(RUN, flop, SMALL)
        assert layout.dp * layout.micro_batches <= found.shape.sequences
        assert layout.micro_batches % layout.pp == 0
        assert layout.pp * layout.virtual_stages <= found.shape.model.layers
        assert all(one == round(one) for one in layout)


def test_no_layout_that_could_be_best_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    flop = np.array([1e24, 1e26, 1e28, 1e29])
    before = best_layouts(RUN, flop).utilization
    monkeypatch.setattr(search, "MOST_GPUS", 1e9)
    assert best_layouts(RUN, flop).utilization == pytest.approx(before, rel=0.01)


def test_more_replicas_never_use_the_peak_better() -> None:
    """What the search rests on: it takes the fewest replicas that finish."""
    runs = runs_of(RUN, np.array([1e26]))
    fewest = candidates(runs, SMALL)
    used = [evaluated(runs, fewest.with_dp(fewest.layout.dp * factor))[1] for factor in (1, 1.5, 2, 4, 16)]
    assert (np.diff(used, axis=0) <= 1e-12).all()


def test_every_candidate_can_be_run() -> None:
    runs = runs_of(RUN, np.array([1e27]))
    layout = candidates(runs, GRID).layout
    assert layout.columns.size > 500
    assert (runs.sequences[0] >= layout.dp * layout.micro_batches).all()
    assert (layout.micro_batches % layout.pp == 0).all()
    assert (layout.virtual_stages[layout.pp == 1] == 1).all()
    assert len(np.unique(np.stack(layout), axis=1).T) == layout.columns.size


def test_many_runs_at_once_are_those_of_each_alone() -> None:
    works = [RUN, replace(RUN, overlap=1.0, node_size=64), replace(RUN, batch_exponent=0.5, run_s=1.5e7)]
    flop = np.array([1e25, 1e27, 1e28])
    every = best_layouts(stacked(works), flop)
    for i, work in enumerate(works):
        alone = best_layouts(work, flop[i : i + 1])
        assert every.score[i] == alone.score[0]
        assert [one[i] for one in every.layout] == [one[0] for one in alone.layout]
    second = taken(stacked(works), np.array([1]))
    assert (second.overlap, second.node_size, second.run_s) == (1.0, 64.0, RUN.run_s)


WORKS = {
    "nothing hidden": RUN,
    "all hidden": replace(RUN, overlap=1.0),
    "batch grows": replace(RUN, overlap=1.0, batch_exponent=0.5),
    "wider": replace(RUN, depth_exponent=0.0),
}


@pytest.mark.parametrize("name", WORKS)
def test_walls_do_not_depend_on_the_grid(name: str) -> None:
    """Against a grid with half powers of two, from whose best layout the same search goes on."""
    flop, work = computes(2), WORKS[name]
    coarse, fine = (walls_of(work, flop, curves(work, 1, flop, grid), grid) for grid in (GRID, FINER))
    assert coarse.begins == pytest.approx(fine.begins, rel=GRID_TOLERANCE)
    assert coarse.ends == pytest.approx(fine.ends, rel=GRID_TOLERANCE)
    assert coarse.best == pytest.approx(fine.best, rel=0.01)


@pytest.mark.parametrize("name", WORKS)
def test_walls_do_not_depend_on_the_points_of_the_curve(name: str) -> None:
    work = WORKS[name]
    few, many = (walls_of(work, flop, curves(work, 1, flop)) for flop in (computes(2), computes(7)))
    assert few.begins == pytest.approx(many.begins, rel=GRID_TOLERANCE)
    assert few.ends == pytest.approx(many.ends, rel=GRID_TOLERANCE)


def test_a_run_has_six_flop_per_parameter_and_token() -> None:
    shape = shape_of(RUN, 5.76e23)
    assert shape.parameters == pytest.approx((5.76e23 / 120) ** 0.5)
    assert 6 * shape.parameters * shape.tokens == pytest.approx(5.76e23)
    assert 12 * shape.model.layers * shape.model.hidden**2 == pytest.approx(shape.parameters)
    assert shape.steps * shape.batch_tokens == pytest.approx(shape.tokens)
    larger = shape_of(RUN, 5.76e23 * 64)
    assert larger.model.layers / shape.model.layers == pytest.approx(2, rel=1e-3)  # 8 times the parameters
    assert larger.batch_tokens == shape.batch_tokens


def test_batch_and_depth_grow_as_their_exponents_say() -> None:
    at = 120 * 405e9**2
    base = shape_of(RUN, at)
    assert base.model.layers == pytest.approx(126)
    work = replace(RUN, batch_exponent=0.5, depth_exponent=0.0)
    grown = shape_of(work, at * 100**2)
    assert grown.batch_tokens == pytest.approx(10 * base.batch_tokens)
    assert grown.model.layers == 126
    assert shape_of(work, at / 100).batch_tokens == base.batch_tokens  # never smaller than stated


@pytest.mark.parametrize("depth", [0.0, 1 / 3])
@pytest.mark.parametrize("batch", [0.0, 0.5])
@pytest.mark.parametrize("run_s", [1e5, 7.884e6])
def test_latency_alone_ends_runs_where_its_steps_take_all_the_time(
    depth: float, batch: float, run_s: float
) -> None:
    work = replace(RUN, depth_exponent=depth, batch_exponent=batch, run_s=run_s)
    shape = shape_of(work, latency_flop(work))
    assert shape.steps * shape.model.layers * 12 * work.kernel_s == pytest.approx(run_s)
    assert latency_flop(replace(work, kernel_s=0.0)) == float("inf")


def test_the_rederived_latency_wall() -> None:
    """The arithmetic from which 2e31 was re-derived: 120 layers at any size, 4 matmuls of 9 us per layer."""
    work = replace(
        RUN,
        depth_exponent=0.0,
        reference_layers=120.0,
        kernel_s=4 * 9e-6 / 12,
        run_s=7.9e6,
        batch_tokens=2.0**22,
    )
    assert latency_flop(work) == pytest.approx(1.8e31, rel=0.05)


def test_draws_are_in_their_ranges_and_cover_them() -> None:
    draws = drawn(1000, 7)
    assert draws.keys() == RANGES.keys()
    for name, (low, high, logarithmic, _) in RANGES.items():
        values = draws[name]
        assert low <= values.min() <= values.max() <= high
        middle = (low * high) ** 0.5 if logarithmic else (low + high) / 2
        assert (values < middle).mean() == pytest.approx(0.5, abs=0.002)
        assert len(np.unique(values)) == 1000
    again, other = drawn(1000, 7), drawn(1000, 8)
    assert all((draws[name] == again[name]).all() for name in draws)
    assert not (draws["overlap"] == other["overlap"]).all()
    assert abs(rank_correlation(draws["overlap"], draws["latency"])) < 0.15


def test_an_input_is_changed_alone_and_a_batch_has_whole_sequences() -> None:
    assert with_input(RUN, "overlap", 0.5) == replace(RUN, overlap=0.5)
    slower = with_input(RUN, "latency", 2.0)
    assert slower == replace(RUN, kernel_s=1e-5, collective_s=13.6e-6, node_hop_s=1.2e-6, network_hop_s=1e-5)
    assert with_input(RUN, "batch_tokens", 5e6).batch_tokens == 2441 * 2048


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    if len(set(one)) > 1 and len(set(other)) > 1:
        assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)
    else:
        assert rank_correlation(one, other) == 0


@pytest.mark.parametrize("batch", [0.0, 0.5])
def test_beyond_the_first_run_that_no_layout_finishes_none_does(batch: float) -> None:
    every = best_layouts(replace(RUN, batch_exponent=batch), computes(1)).utilization > 0
    assert list(every) == sorted(every, reverse=True)
    assert not every[-1] or batch


def test_no_run_finishes_beyond_the_latency_wall() -> None:
    for work in (RUN, replace(RUN, overlap=1.0), replace(RUN, depth_exponent=0.0)):
        most = latency_flop(work)
        assert best_run(work, most * 1.01).utilization == 0
        assert searched([work]).ends[0] <= most


@settings(deadline=None, max_examples=20)
@given(st.floats(25, 29), st.sampled_from([0.0, 1.0]), st.floats(1, 4.5))
def test_more_bandwidth_never_lowers_utilization(power: float, overlap: float, factor: float) -> None:
    """Nor more overlap, nor a longer run; within what the search misses."""
    work = replace(RUN, overlap=overlap)
    better = [
        replace(work, network_B_per_s=50e9 * factor),
        replace(work, overlap=1.0),
        replace(work, run_s=work.run_s * factor),
    ]
    used = best_layouts(stacked([work, *better]), np.full(4, 10**power)).utilization
    assert (used[1:] >= used[0] * 0.97).all()


def power_law(monkeypatch: pytest.MonkeyPatch, stops: float = np.inf) -> None:
    """Let a curve be flat up to 1e26 and then fall as the root of the computation, to 0 past `stops`."""

    def found(given: LimitsWorkload, flop: Floats, grid: LayoutGrid = GRID) -> BestLayouts:
        used = np.where(flop <= 1e26, 0.5, 0.5 * (flop / 1e26) ** -0.5)
        layout = ParallelLayout(*(np.ones_like(flop) for _ in ParallelLayout._fields))
        return BestLayouts(np.where(flop <= stops, 1 + used, 0.5), layout)

    monkeypatch.setattr(walls_module, "best_layouts", found)


def walls_at(flop: Floats) -> Walls:
    walls = walls_of(RUN, flop, curves(RUN, 1, flop))
    return Walls(*(one[0] for one in walls))


def test_walls_are_where_a_curve_crosses_their_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power law from a plateau on crosses each level at a place that a logarithm gives."""
    power_law(monkeypatch)
    walls = walls_at(np.logspace(24, 30, 13))
    assert walls.best == 0.5
    assert walls.begins == pytest.approx(1e26 * FALLEN**-2)
    assert walls.ends == pytest.approx(1e26 * (LOW / 0.5) ** -2)


def test_a_curve_that_stops_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    power_law(monkeypatch, stops=7e27)
    walls = walls_at(np.logspace(24, 30, 13))
    assert walls.begins == pytest.approx(1e26 * FALLEN**-2)
    assert walls.ends == pytest.approx(7e27, rel=0.05)
    assert walls_at(np.logspace(24, 26, 3)) == (1e26, 1e26, 0.5)
    power_law(monkeypatch, stops=0)
    assert walls_at(np.logspace(24, 27, 4)) == (1e24, 1e24, 0.0)


def test_each_draw_is_the_curve_of_its_inputs() -> None:
    flop = np.logspace(26, 28, 3)
    draws = {name: values[:3] for name, values in drawn(10, 1).items()}
    works = list(drawn_workloads(RUN, draws))
    found = curves(stacked(works), 3, flop)
    for i in range(3):
        work = RUN
        for name, values in draws.items():
            work = with_input(work, name, values[i])
        assert works[i] == work
        assert found[i] == pytest.approx(curves(work, 1, flop)[0])


def test_one_input_at_a_time_gives_both_its_ends() -> None:
    found = {name: (low, high) for name, low, high in one_at_a_time(RUN)}
    assert found.keys() == RANGES.keys()
    assert found["overlap"][0] == RUN  # the baseline hides nothing
    walls = searched([*found["network_B_per_s"], *found["latency"]])
    assert walls.begins[0] < walls.begins[1]
    assert walls.ends[2] > walls.ends[3]


def test_combinations_are_all_and_each_has_its_own_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(combinations())) == np.prod([len(values) for values in CHOICES.values()])
    few = {name: values[:2] for name, values in CHOICES.items() if name in ("overlap", "node_size")}
    monkeypatch.setattr("suites.seconds.walls.CHOICES", few)
    found = dict(chosen(RUN))
    assert list(found) == [method_of(values) for values in combinations()]
    assert found["overlap=0.5, node_size=64"] == replace(RUN, overlap=0.5, node_size=64)
