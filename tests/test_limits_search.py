"""The best layout, the walls and their band, compared with brute force and closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from suites.limits import search
from suites.limits.run_shape import latency_flop, shape_of
from suites.limits.search import COARSE, FINE, LayoutGrid, best_run, candidates
from suites.limits.step_time import ParallelLayout, step_time
from suites.limits.subject import Workload
from suites.limits.uncertainty import RANGES, drawn, drawn_curves, one_at_a_time, rank_correlation, with_input
from suites.limits.walls import FALLEN, LOW, computes, curve, walls_of
from suites.limits.what_if import CHOICES, chosen_walls, combinations, method_of

RUN = Workload(kind="curve")
SMALL = LayoutGrid((0, 2, 3), (0, 1), (0, 2), (0, 3, 6), (0,), (0, 2), (0, 1))


def brute_force(given: Workload, flop: float, grid: LayoutGrid) -> tuple[float, float]:
    """Return the best utilization and its seconds per step, one layout after the other, each by itself."""
    shape = shape_of(given, flop)
    best, best_s = 0.0, float("nan")
    for c, r, p, d, e, m, v in product(*grid):
        columns, rows, pp, dp, ep, per_stage = (2.0**power for power in (c, r, p, d, e, m))
        virtual = 2.0**v if pp > 1 else 1.0
        micro_batches = per_stage * pp
        if (
            ep > dp
            or dp * micro_batches > shape.sequences
            or pp * virtual > shape.model.layers
            or ep > given.experts
        ):
            continue
        layout = ParallelLayout(
            *(np.array([one]) for one in (columns, rows, 1.0, dp, pp, ep, micro_batches, virtual))
        )
        step_s = float(step_time(given, shape.model, layout, shape.batch_tokens).total_s[0])
        used = flop / shape.steps / (float(layout.gpus[0]) * given.peak_FLOP_per_s * step_s)
        if step_s * shape.steps <= given.run_s and used > best:
            best, best_s = used, step_s
    return best, best_s


@pytest.mark.parametrize("flop", [1e22, 1e24, 3e24, 1e26, 1e29])
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_the_best_layout_is_that_of_trying_each(flop: float, overlap: float) -> None:
    work = replace(RUN, overlap=overlap)
    best, step_s = brute_force(work, flop, SMALL)
    found = best_run(work, flop, SMALL)
    assert found.utilization == pytest.approx(best)
    if best:
        assert found.step_s == pytest.approx(step_s)
        assert found.layout is not None
        assert found.gpus == found.layout.gpus[0]


def test_experts_are_shared_where_that_is_best() -> None:
    work = replace(RUN, experts=64, experts_per_token=2, batch_tokens=2.0**22)
    grid = SMALL._replace(ep=(0, 2, 3, 4, 6))
    best, _ = brute_force(work, 1e24, grid)
    found = best_run(work, 1e24, SMALL)
    assert found.utilization == pytest.approx(best)
    assert found.layout is not None, best
    assert 1 < found.layout.ep[0] <= 64


def test_no_layout_that_could_be_best_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [best_run(RUN, flop, COARSE).utilization for flop in (1e24, 1e26, 1e28, 1e29)]
    monkeypatch.setattr(search, "MOST_GPUS", 1e9)
    assert before == [best_run(RUN, flop, COARSE).utilization for flop in (1e24, 1e26, 1e28, 1e29)]


def test_every_candidate_can_be_run() -> None:
    shape = shape_of(RUN, 1e27)
    layout = candidates(RUN, shape, FINE)
    assert layout.columns.size > 1000
    assert (shape.sequences >= layout.dp * layout.micro_batches).all()
    assert (layout.micro_batches % layout.pp == 0).all()
    assert (layout.virtual_stages[layout.pp == 1] == 1).all()
    assert len(np.unique(np.stack(layout), axis=1).T) == layout.columns.size


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


@pytest.mark.parametrize("batch", [0.0, 0.5])
def test_beyond_the_first_run_that_no_layout_finishes_none_does(batch: float) -> None:
    work = replace(RUN, batch_exponent=batch)
    every = [best_run(work, flop, COARSE).utilization > 0 for flop in computes(1)]
    assert every == sorted(every, reverse=True)
    assert not every[-1]


def test_no_run_finishes_beyond_the_latency_wall() -> None:
    for work in (RUN, replace(RUN, overlap=1.0), replace(RUN, batch_exponent=0.5, depth_exponent=0.0)):
        most = latency_flop(work)
        assert best_run(work, most * 1.01, COARSE).utilization == 0
        flop = computes(2)
        assert walls_of(flop, curve(work, flop, COARSE)).ends <= most * 10**0.5


@settings(deadline=None, max_examples=20)
@given(st.floats(25, 29), st.sampled_from([0.0, 1.0]), st.floats(1, 8))
def test_more_bandwidth_never_lowers_utilization(power: float, overlap: float, factor: float) -> None:
    work = replace(RUN, overlap=overlap)
    faster = replace(work, network_B_per_s=50e9 * min(factor, 4.5))
    assert best_run(faster, 10**power, COARSE).utilization >= best_run(
        work, 10**power, COARSE
    ).utilization * (1 - 1e-9)


@settings(deadline=None, max_examples=20)
@given(st.floats(25, 29), st.floats(1, 4))
def test_a_longer_run_or_more_overlap_never_lowers_utilization(power: float, factor: float) -> None:
    base = best_run(RUN, 10**power, COARSE).utilization
    longer = replace(RUN, run_s=RUN.run_s * factor)
    assert best_run(longer, 10**power, COARSE).utilization >= base * (1 - 1e-9)
    assert best_run(replace(RUN, overlap=1.0), 10**power, COARSE).utilization >= base * (1 - 1e-9)


def test_the_coarser_grid_is_part_of_the_finer_one() -> None:
    for name in LayoutGrid._fields:
        assert set(getattr(COARSE, name)) <= set(getattr(FINE, name)), name
    for flop in (1e25, 1e27, 1e28):
        fine, coarse = (best_run(RUN, flop, grid).utilization for grid in (FINE, COARSE))
        assert 0.85 * fine < coarse <= fine


def test_walls_are_where_a_curve_crosses_their_levels() -> None:
    """A power law from a plateau on crosses each level at a place that a logarithm gives."""
    flop = np.logspace(24, 30, 13)
    used = np.where(flop <= 1e26, 0.5, 0.5 * (flop / 1e26) ** -0.5)
    walls = walls_of(flop, used)
    assert walls.best == 0.5
    assert walls.begins == pytest.approx(1e26 * FALLEN**-2)
    assert walls.ends == pytest.approx(1e26 * (LOW / 0.5) ** -2)


def test_a_curve_that_stops_ends_before_its_next_point() -> None:
    flop = np.logspace(24, 27, 4)
    walls = walls_of(flop, np.array([0.3, 0.5, 0.45, 0.0]))
    assert 1e26 < walls.begins < walls.ends < 1e27
    assert walls_of(flop, np.array([0.5, 0.5, 0.5, 0.5])).ends == flop[-1]
    assert walls_of(flop, np.zeros(4)) == (flop[0], flop[0], 0.0)


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


def test_each_draw_is_the_curve_of_its_inputs() -> None:
    flop = np.logspace(26, 28, 3)
    draws = {name: values[:3] for name, values in drawn(10, 1).items()}
    found = drawn_curves(RUN, draws, flop)
    for i in range(3):
        work = RUN
        for name, values in draws.items():
            work = with_input(work, name, values[i])
        assert found[i] == pytest.approx(curve(work, flop, COARSE))


def test_an_input_is_changed_alone_and_a_batch_has_whole_sequences() -> None:
    assert with_input(RUN, "overlap", 0.5) == replace(RUN, overlap=0.5)
    slower = with_input(RUN, "latency", 2.0)
    assert slower == replace(RUN, kernel_s=1e-5, collective_s=13.6e-6, node_hop_s=1.2e-6, network_hop_s=1e-5)
    assert with_input(RUN, "batch_tokens", 5e6).batch_tokens == 2441 * 2048


def test_one_input_at_a_time_gives_the_walls_at_both_its_ends() -> None:
    flop = computes(2)
    found = {name: (low, high) for name, low, high in one_at_a_time(RUN)}
    assert found.keys() == RANGES.keys()
    assert found["overlap"][0] == walls_of(flop, curve(RUN, flop, COARSE))  # the baseline hides nothing
    assert found["network_B_per_s"][0].begins < found["network_B_per_s"][1].begins
    assert found["latency"][0].ends > found["latency"][1].ends


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    if len(set(one)) > 1 and len(set(other)) > 1:
        assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)
    else:
        assert rank_correlation(one, other) == 0


def test_combinations_are_all_and_each_has_its_own_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(combinations())) == np.prod([len(values) for values in CHOICES.values()])
    few = {name: values[:2] for name, values in CHOICES.items() if name in ("overlap", "node_size")}
    monkeypatch.setattr("suites.limits.what_if.CHOICES", few)
    found = dict(chosen_walls(RUN))
    assert list(found) == [method_of(chosen) for chosen in combinations()]
    flop = computes(2)
    work = replace(RUN, overlap=0.5, node_size=64)
    assert found["overlap=0.5, node_size=64"] == walls_of(flop, curve(work, flop, COARSE))
