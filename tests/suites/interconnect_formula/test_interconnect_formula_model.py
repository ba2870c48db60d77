"""The closed formulas, compared with sums done by hand; their bytes: test_interconnect_formula_traffic.

The run: Gemma 3 12B over two nodes of eight H100 (maknee.github.io, 2025-09-11), 4.4 s per step at 400 GB/s
per node and 39.8 s at 10 Gbit/s, 9.05 times as long.
"""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.interconnect.interconnect_formula import (
    BEST,
    WORST,
    Assumption,
    BestAndWorstCase,
    compute_left,
    step_bounds,
    step_seconds,
    sufficient_rate,
)
from suites.training.step_time.collectives import (
    Cluster,
    Exchange,
    Strategy,
    TrafficPattern,
    communication_seconds,
    latency_seconds,
    link_bytes,
    training_flop,
)

GB = 1e9
TWO_NODES = Cluster(2, 8)
GEMMA_12B = Exchange(12.2e9)
ETHERNET_B_PER_S, INFINIBAND_B_PER_S = 10e9 / 8, 8 * 400e9 / 8
STEP_S, SLOW_STEP_S, RATIO = 4.4, 39.8, 9.05
TOKENS_PER_GPU = (
    4 * 1024
)  # the published script's batch and max_length; those of the quoted run are not stated

clusters = st.builds(Cluster, st.integers(2, 64), st.integers(1, 16), st.floats(0, 1e-3))
exchanges = st.builds(
    Exchange,
    st.floats(1e6, 1e12),
    st.sampled_from(get_args(Strategy)),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.sampled_from([None, 2.0, 4.0]),
    st.integers(1, 100),
)
rates = st.floats(1e6, 1e13)
seconds = st.floats(1e-3, 1e3)


# The published run, by arithmetic done by hand: 24.4 GB of parameters in bf16.


def test_the_runs_bytes_and_seconds() -> None:
    ring_B = link_bytes(GEMMA_12B, TWO_NODES, "ring")
    aware_B = link_bytes(GEMMA_12B, TWO_NODES, "node_aware")
    assert [round(x / GB, 1) for x in (ring_B / 3, ring_B, aware_B)] == [22.9, 68.6, 36.6]
    slow_s = [
        communication_seconds(GEMMA_12B, TWO_NODES, ETHERNET_B_PER_S, t) for t in get_args(TrafficPattern)
    ]
    assert [round(x, 1) for x in slow_s] == [54.9, 29.3]
    assert round(communication_seconds(GEMMA_12B, TWO_NODES, INFINIBAND_B_PER_S, "ring"), 2) == 0.17


def test_the_band_calibrated_at_the_fast_link_holds_the_slow_links_values() -> None:
    compute_s = compute_left(GEMMA_12B, TWO_NODES, INFINIBAND_B_PER_S, STEP_S)
    slow_s = step_bounds(GEMMA_12B, TWO_NODES, ETHERNET_B_PER_S, compute_s)
    assert [round(x, 1) for x in slow_s] == [29.3, 59.1]  # 36.6/1.25; 4.4 - 0.17 + 54.9
    assert slow_s.at_best < SLOW_STEP_S < slow_s.at_worst
    assert [round(x / STEP_S, 1) for x in slow_s] == [6.7, 13.4]
    assert slow_s.at_best / STEP_S < RATIO < slow_s.at_worst / STEP_S


def test_the_run_implies_about_88_tflop_per_s_per_gpu() -> None:
    """Within a tenth: the published figure does not say which of the model's parameters it counted."""
    for compute_s in compute_left(GEMMA_12B, TWO_NODES, INFINIBAND_B_PER_S, STEP_S):
        with_recomputation = training_flop(12.2e9, TOKENS_PER_GPU) * 8 / 6
        assert with_recomputation / compute_s == pytest.approx(88e12, rel=0.1)


def test_a_step_too_short_for_its_traffic_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError,
        match=r"no time is left for computation: ring traffic alone takes 54\.9 s of a step of 39\.8 s",
    ):
        compute_left(GEMMA_12B, TWO_NODES, ETHERNET_B_PER_S, SLOW_STEP_S)


def test_flop_counted_as_for_gpt_3() -> None:
    """arXiv 2005.14165, table D.1: 174,600 M parameters, 300 B tokens, 3.14e23 FLOP."""
    assert training_flop(174.6e9, 300e9) == pytest.approx(3.14e23, rel=2e-3)


# Properties.


@given(exchanges, clusters)
def test_ring_sends_no_less_than_node_aware(exchange: Exchange, cluster: Cluster) -> None:
    assert link_bytes(exchange, cluster, "ring") >= link_bytes(exchange, cluster, "node_aware") > 0


@given(exchanges, clusters, rates, seconds)
def test_the_ends_of_the_band_are_the_least_and_the_most_of_the_four_cases(
    exchange: Exchange, cluster: Cluster, rate_B_per_s: float, compute_s: float
) -> None:
    cases = [
        step_seconds(exchange, cluster, rate_B_per_s, compute_s, Assumption(traffic, overlap))
        for traffic in get_args(TrafficPattern)
        for overlap in ("none", "perfect")
    ]
    band = step_bounds(exchange, cluster, rate_B_per_s, BestAndWorstCase.same(compute_s))
    assert compute_s <= band.at_best == min(cases) <= max(cases) == band.at_worst


@given(exchanges, clusters, rates, st.floats(1, 1e3), seconds, st.sampled_from([BEST, WORST]))
def test_a_faster_link_never_makes_a_longer_step(
    exchange: Exchange, cluster: Cluster, rate: float, faster: float, compute_s: float, assumed: Assumption
) -> None:
    slow_s = step_seconds(exchange, cluster, rate, compute_s, assumed)
    assert step_seconds(exchange, cluster, rate * faster, compute_s, assumed) <= slow_s


@given(exchanges, clusters, seconds, st.floats(0.01, 1))
def test_the_sufficient_rate_adds_just_that_share_when_put_back(
    exchange: Exchange, cluster: Cluster, compute_s: float, added: float
) -> None:
    enough = sufficient_rate(exchange, cluster, BestAndWorstCase.same(compute_s), added)
    for rate_B_per_s, assumed in zip(enough, (BEST, WORST), strict=True):
        if math.isfinite(rate_B_per_s):
            step_s = step_seconds(exchange, cluster, rate_B_per_s, compute_s, assumed)
            assert step_s == pytest.approx((1 + added) * compute_s)
        else:
            step_s = step_seconds(exchange, cluster, 1e30, compute_s, assumed)
            assert step_s >= (1 + added) * compute_s * (1 - 1e-9)
    assert enough.at_best <= enough.at_worst


@given(exchanges, exchanges, clusters, seconds, st.floats(0.01, 1), st.floats(1.001, 100))
def test_beyond_its_rate_an_exchange_takes_at_most_that_share_longer_than_another(
    exchange: Exchange, other: Exchange, cluster: Cluster, compute_s: float, added: float, faster: float
) -> None:
    enough = sufficient_rate(exchange, cluster, BestAndWorstCase.same(compute_s), added, other)
    for rate, assumed in zip(enough, (BEST, WORST), strict=True):
        beyond = rate * faster if math.isfinite(rate) else 1e30
        own, others = (
            step_seconds(one, cluster, max(beyond, 1.0), compute_s, assumed) for one in (exchange, other)
        )
        assert (own <= (1 + added) * others * (1 + 1e-9)) == math.isfinite(rate)


@given(exchanges, exchanges, st.integers(2, 64), seconds, st.floats(0.01, 1))
def test_below_its_rate_an_exchange_takes_longer_than_that(
    exchange: Exchange, other: Exchange, nodes: int, compute_s: float, added: float
) -> None:
    cluster = Cluster(nodes, 8)
    enough = sufficient_rate(exchange, cluster, BestAndWorstCase.same(compute_s), added, other)
    for rate, assumed in zip(enough, (BEST, WORST), strict=True):
        if 1.0 < rate < math.inf:
            own, others = (
                step_seconds(one, cluster, rate * 0.99, compute_s, assumed) for one in (exchange, other)
            )
            assert own > (1 + added) * others


@given(exchanges, clusters, rates, st.floats(0, 1), seconds)
def test_calibration_gives_back_its_own_step_and_a_band_in_order_below_its_rate(
    exchange: Exchange, cluster: Cluster, rate: float, slower: float, compute_s: float
) -> None:
    step_s = compute_s + communication_seconds(exchange, cluster, rate, "ring")
    left_s = compute_left(exchange, cluster, rate, step_s)
    assert step_bounds(exchange, cluster, rate, left_s) == pytest.approx((step_s, step_s))
    below = step_bounds(exchange, cluster, max(rate * slower, 1.0), left_s)
    assert below.at_best <= below.at_worst * (1 + 1e-9)


@given(exchanges, st.integers(1, 16), seconds)
def test_one_node_sends_nothing_and_any_link_suffices(
    exchange: Exchange, gpus_per_node: int, compute_s: float
) -> None:
    alone = Cluster(1, gpus_per_node, 1e-3)
    assert step_bounds(exchange, alone, 1.0, BestAndWorstCase.same(compute_s)) == (compute_s, compute_s)
    assert sufficient_rate(exchange, alone, BestAndWorstCase.same(compute_s)) == (0, 0)


def test_latency_is_of_each_collective_between_nodes() -> None:
    cluster = Cluster(2, 8, latency_s=1e-3)
    by_strategy = {s: latency_seconds(Exchange(1e9, s, units=10), cluster) for s in get_args(Strategy)}
    assert by_strategy == pytest.approx({"fsdp": 0.03, "ddp": 0.01, "hybrid": 0.01})


def test_gradients_in_fp32_cost_twice_those_in_bf16() -> None:
    bf16_B, fp32_B = (
        link_bytes(Exchange(1e9, "ddp", 2.0, gradient_B), TWO_NODES) for gradient_B in (2.0, 4.0)
    )
    assert fp32_B == 2 * bf16_B
    assert link_bytes(Exchange(1e9, "fsdp", 2.0, 4.0), TWO_NODES) == pytest.approx(15 / 16 * 8e9)


@pytest.mark.parametrize("wrong", [(0, 8, 0.0), (2, 0, 0.0), (2, 8, -1.0)])
def test_a_cluster_of_nothing_is_refused(wrong: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="at least one node, one GPU per node"):
        Cluster(*wrong)


def test_bounds_agree_with_sums_by_hand() -> None:
    """3 x 7 collectives of 2 ms; 7e9 parameters gathered twice in 1 B and reduced in 4 B."""
    cluster, exchange = Cluster(2, 4, latency_s=2e-3), Exchange(7e9, "fsdp", 1.0, 4.0, units=7)
    compute_s = training_flop(7e9, 1000) / 1e14
    assert compute_s == pytest.approx(0.42)
    step_s = step_bounds(exchange, cluster, 1e9, BestAndWorstCase.same(compute_s))
    assert step_s.at_worst == pytest.approx(0.42 + 0.042 + 7 / 8 * 42)
    assert step_s.at_best == pytest.approx(0.042 + 1 / 2 * 42)
    enough = sufficient_rate(exchange, cluster, BestAndWorstCase.same(compute_s))
    assert enough.at_best == pytest.approx(21e9 / (1.05 * 0.42 - 0.042))
    assert enough.at_worst == math.inf  # latency alone is 10 %


def test_hybrid_shards_send_gradients_alone_between_nodes() -> None:
    cluster, compute_s = Cluster(4, 8), BestAndWorstCase.same(1.0)
    fsdp, hybrid = (
        step_bounds(Exchange(7e9, strategy), cluster, 1e9, compute_s) for strategy in ("fsdp", "hybrid")
    )
    assert hybrid.at_worst - 1.0 == pytest.approx(2 * 14 * 3 / 4)
    assert fsdp.at_worst - 1.0 == pytest.approx(3 * 14 * 31 / 32)
