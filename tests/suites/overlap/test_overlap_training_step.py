"""The overlap suite's training step, on real ranks over loopback: gradients against float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from overlap_on_rank import pool_of

from harness.instruments.distributed.rank_pool import RankPool
from suites.overlap import suite as overlap
from suites.overlap.workload import Subject, Workload

ON_RANK = "suites.overlap.on_rank"
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with pool_of(request.param) as pool:
        pool.call(f"{ON_RANK}:begin", addresses=["127.0.0.1"] * request.param)
        yield pool


def step_of(ranks: int, tp_size: int = 2) -> Workload:
    """Return a small step; its 22 rows per rank do not divide by most numbers of chunks."""
    sizes = {"hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 4}
    return Workload(operation="training_step", ranks=ranks, m=22 * ranks, tp_size=tp_size, **sizes)


def made(pool: RankPool, algorithm: Any, tp_size: int = 2, **more: Any) -> str:
    """Make the step on every rank."""
    subject = Subject(step_of(len(pool), tp_size), 5, algorithm, **more)
    key = f"{algorithm} {tp_size} {more}"
    pool.call(f"{ON_RANK}:make", key=key, subject=asdict(subject))
    return key


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("in_sequence", {}),
        ("in_sequence", {"weight_gradient_overlaps": True}),
        ("decomposed", {}),
        ("symmetric", {}),
        ("symmetric", {"order": "full_mesh"}),
    ],
)
def test_losses_and_gradients_are_those_of_the_full_model(algorithm, more, ranks):
    for tp_size in {2, len(ranks)}:
        key = made(ranks, algorithm, tp_size, **more)
        for chunks in (1, 3, 16):
            for what in ("communicate", "compute", "run"):
                ranks.call(f"{ON_RANK}:seconds", key=key, what=what, chunks=chunks, count=2)
            for error in ranks.call(f"{ON_RANK}:error", key=key, chunks=chunks):
                assert error < TOLERANCE


@pytest.mark.parametrize(("fault", "chunks"), [("stale", 3), ("swapped", 2)])
def test_data_of_the_step_before_or_in_another_order_shows_in_each_collective(fault, chunks, ranks):
    key = made(ranks, "symmetric")
    for errors in ranks.call("overlap_on_rank:faulty_errors", key=key, fault=fault, chunks=chunks):
        assert len(errors) == 2 * 4 * 2
        assert min(errors) > 100 * TOLERANCE


def test_steps_of_ranks_that_share_a_core_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    for operation, ranks, timed in (
        ("training_step", 2, True),
        ("training_step", 4, False),
        ("ag_gemm", 4, True),
    ):
        session: Any = overlap.Session(Subject(Workload(operation=operation, ranks=ranks), 0), None, "key")
        assert overlap.timed(session) is timed


def test_an_update_subtracts_the_gradients(ranks: RankPool) -> None:
    key = made(ranks, "in_sequence")
    for errors in ranks.call("overlap_on_rank:update_errors", key=key):
        assert max(errors) < 1e-6


def test_a_rank_sends_each_collectives_bytes_and_the_gradients_of_data_parallelism(ranks: RankPool) -> None:
    shard_B, weights_B = 22 * 40 * 4, step_of(len(ranks)).parameters * 4
    for tp_size in {2, len(ranks)}:
        key, replicas = made(ranks, "symmetric", tp_size), len(ranks) // tp_size
        of_rank = 2 * 4 * 2 * (tp_size - 1) * shard_B
        of_rank += 2 * (replicas - 1) / replicas * weights_B / tp_size  # a ring's all-reduce
        assert ranks.call(f"{ON_RANK}:sent_B", key=key) == [of_rank] * len(ranks)
