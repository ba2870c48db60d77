"""Seconds of collectives and of tensor parallelism, compared with exchanges counted element by element."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.training.step_time.collectives import (
    NodeLinks,
    all_reduce_s,
    all_to_all_s,
    gather_s,
    ranks_in_node,
    send_s,
)

BYTES_ALONE = NodeLinks(8, 450e9, 50e9, 0.0, 0.0, 0.0)
LATENCY = NodeLinks(8, 450e9, 50e9, 7e-6, 1e-6, 5e-6)

powers = st.integers(0, 10).map(lambda power: 2.0**power)


def one(value: float) -> np.ndarray:
    return np.array([value])


def gathered_by_halves(size: int, group: int, near: int) -> tuple[int, int]:
    """Return the elements that rank 0 receives within its node and from others, in an all-gather.

    Nodes exchange first, then the ranks of each node, so each rank brings its own part in from the other
    nodes.
    """
    part = size // group
    has = {rank: {rank} for rank in range(group)}
    received = {"within": 0, "between": 0}
    hops = [(near * 2**i, "between") for i in range(int(math.log2(group // near)))]
    hops += [(2**i, "within") for i in range(int(math.log2(near)))]
    for distance, kind in hops:
        before = {rank: set(parts) for rank, parts in has.items()}
        for rank in range(group):
            peer = rank ^ distance
            new = before[peer] - before[rank]
            has[rank] |= new
            if rank == 0:
                received[kind] += part * len(new)
    assert all(parts == set(range(group)) for parts in has.values())
    return received["within"], received["between"]


@pytest.mark.parametrize(("group", "node"), [(2, 8), (8, 8), (16, 8), (64, 8), (16, 1), (32, 4)])
def test_an_all_gather_receives_the_bytes_that_it_has_to(group: int, node: int) -> None:
    size = 1024
    links = BYTES_ALONE._replace(node_size=node)
    within, between = gathered_by_halves(size, group, min(group, node))
    assert within + between == size - size // group
    found = gather_s(one(size), one(group), one(1.0), links)
    assert found.bytes_s[0] == pytest.approx(within / 450e9 + between / 50e9)
    assert found.latency_s[0] == 0


def test_hops_count_once_each_way_and_one_rank_sends_nothing() -> None:
    """32 ranks in nodes of 8: three hops within and two between."""
    found = gather_s(one(8.0), one(32.0), one(1.0), LATENCY)
    assert found.latency_s[0] == pytest.approx(7e-6 + 3e-6 + 10e-6)
    both = all_reduce_s(one(8.0), one(32.0), one(1.0), LATENCY)
    assert both.latency_s[0] == pytest.approx(2 * found.latency_s[0])
    assert both.bytes_s[0] == pytest.approx(2 * found.bytes_s[0])
    for collective in (gather_s, all_reduce_s, all_to_all_s):
        alone = collective(one(8.0), one(1.0), one(4.0), LATENCY)
        assert (alone.bytes_s[0], alone.latency_s[0]) == (0, 0)


@pytest.mark.parametrize(
    ("group", "inner", "node", "near"),
    [
        (8, 1, 8, 8),
        (16, 1, 8, 8),
        (4, 4, 8, 2),
        (4, 8, 8, 1),
        (4, 16, 8, 1),
        (64, 1, 72, 64),
        (128, 2, 72, 32),
        (2, 1, 1, 1),
    ],
)
def test_ranks_in_a_node_are_a_power_of_two_that_fits(group: int, inner: int, node: int, near: int) -> None:
    assert ranks_in_node(one(group), one(inner), node)[0] == near


def test_an_all_to_all_keeps_what_a_rank_has_for_itself() -> None:
    """16 ranks in nodes of 8: of 16 parts one stays, 7 go to the node, 8 leave it."""
    found = all_to_all_s(one(16e9), one(16.0), one(1.0), LATENCY)
    assert found.bytes_s[0] == pytest.approx(7e9 / 450e9 + 8e9 / 50e9)
    assert found.latency_s[0] == pytest.approx(7e-6 + 5e-6)
    assert all_to_all_s(one(1.0), one(8.0), one(1.0), LATENCY).latency_s[0] == pytest.approx(8e-6)


def test_a_send_crosses_the_network() -> None:
    found = send_s(one(50e9), LATENCY)
    assert (found.bytes_s[0], found.latency_s[0]) == (1.0, 5e-6)


@given(powers, powers, st.floats(1, 1e12), st.integers(1, 128))
def test_the_bytes_are_never_slower_than_over_the_network_alone(
    group: float, inner: float, size: float, node: int
) -> None:
    links = LATENCY._replace(node_size=node)
    found = gather_s(one(size), one(group), one(inner), links).bytes_s[0]
    received = size * (1 - 1 / group)
    assert (
        received / links.node_B_per_s * (1 - 1e-9) <= found <= received / links.network_B_per_s * (1 + 1e-9)
    )


@given(powers, powers, st.floats(1, 1e12), st.floats(1.01, 100))
def test_more_bandwidth_never_takes_longer(group: float, inner: float, size: float, factor: float) -> None:
    for field in ("node_B_per_s", "network_B_per_s"):
        faster = LATENCY._replace(**{field: getattr(LATENCY, field) * factor})
        for collective in (gather_s, all_reduce_s, all_to_all_s):
            slow, fast = (
                collective(one(size), one(group), one(inner), links).bytes_s[0] for links in (LATENCY, faster)
            )
            assert fast <= slow * (1 + 1e-12)


def grid_bytes(widths: list[tuple[int, int]], rows: int, columns: int, tokens: int) -> int:
    """Return the elements that rank (0, 0) of a grid sums with others, by multiplying matrices.

    Every second matrix is cut the other way round, so that its inputs are where the last outputs are.
    """
    random = np.random.default_rng(0)
    summed = 0
    for i, (inputs, outputs) in enumerate(widths):
        over_inputs, over_outputs = (rows, columns) if i % 2 == 0 else (columns, rows)
        w = random.standard_normal((inputs, outputs))
        x, dy = random.standard_normal((tokens, inputs)), random.standard_normal((tokens, outputs))
        w_parts = [np.split(one_, over_outputs, axis=1) for one_ in np.split(w, over_inputs, axis=0)]
        x_parts, dy_parts = np.split(x, over_inputs, axis=1), np.split(dy, over_outputs, axis=1)
        y = [
            sum(x_parts[a] @ w_parts[a][b] for a in range(over_inputs)) for b in range(over_outputs)
        ]  # each sum is over the ranks that cut the inputs
        dx = [sum(dy_parts[b] @ w_parts[a][b].T for b in range(over_outputs)) for a in range(over_inputs)]
        assert np.allclose(np.concatenate(y, axis=1), x @ w)
        assert np.allclose(np.concatenate(dx, axis=1), dy @ w.T)
        summed += (y[0].size if over_inputs > 1 else 0) * 2 * (over_inputs - 1) // over_inputs
        summed += (dx[0].size if over_outputs > 1 else 0) * 2 * (over_outputs - 1) // over_outputs
    return summed


@pytest.mark.parametrize(("rows", "columns"), list(product((1, 2, 4), (1, 2, 4))))
def test_tensor_parallelism_sums_what_multiplying_the_parts_sums(rows: int, columns: int) -> None:
    """A layer of width 16 with an MLP of 64 on 8 tokens, a GPU per node: all bytes cross one network."""
    from suites.seconds.formula import Model, ParallelLayout, _tensor_s
    from suites.seconds.workload import LimitsWorkload

    hidden, tokens = 16, 8
    work = LimitsWorkload(
        node_size=1, network_B_per_s=1e8, node_link_B_per_s=1e9, collective_s=0, node_hop_s=0, network_hop_s=0
    )
    model = Model(1, hidden, 3 * hidden, 4 * hidden, 4 * hidden, 0, 8)
    layout = ParallelLayout(*(one(float(size)) for size in (columns, rows, 1, 1, 1, 1, 1, 1)))
    expected = grid_bytes(
        [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)],
        rows,
        columns,
        tokens,
    )
    found = _tensor_s(work, model, layout, one(float(tokens)))
    assert found.bytes_s[0] == pytest.approx(expected * work.activation_B / 1e8)
