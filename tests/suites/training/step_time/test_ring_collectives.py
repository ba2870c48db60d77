"""Rings of collectives against the closed formulas of their bytes and their hops."""

import numpy as np
import pytest

from suites.training.step_time.collectives import NodeLinks, ring_gather_s

LINKS = NodeLinks(8.0, 300e9, 20e9, 1e-5, 1e-6, 2e-5)


def ring(size_B, group, inner=1):
    one = ring_gather_s(np.array([size_B]), np.array([float(group)]), np.array([float(inner)]), LINKS)
    return float(one.bytes_s[0]), float(one.latency_s[0])


def test_within_a_node_every_rank_receives_all_but_its_own_part():
    bytes_s, latency_s = ring(1e9, 8)
    assert bytes_s == pytest.approx(1e9 * 7 / 8 / 300e9)  # nccl-tests, PERFORMANCE.md
    assert latency_s == pytest.approx(1e-5 + 7e-6)


def test_between_nodes_each_gpu_has_a_ring_of_its_own():
    bytes_s, latency_s = ring(1e9, 32)
    assert bytes_s == pytest.approx(1e9 / 8 * 31 / 32 / 20e9)
    assert latency_s == pytest.approx(1e-5 + 7e-6 + 3 * 2e-5)


def test_ranks_that_lie_a_node_apart_share_no_fast_link():
    bytes_s, _ = ring(1e9, 4, inner=8)
    assert bytes_s == pytest.approx(1e9 * 3 / 4 / 20e9)


def test_one_rank_waits_for_nobody():
    assert ring(1e9, 1) == (0.0, 0.0)
