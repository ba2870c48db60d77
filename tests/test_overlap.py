"""The overlap suite's links and puts, and what it refuses; test_every_optimization.py runs its variants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from harness.code_fingerprint import ROOT
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.network.topology import FRAME_B, Link, Topology, TopologyError
from harness.records import Unavailable, WrongResult
from suites import overlap
from suites.overlap.cluster import shaped_links, topology_of
from suites.overlap.subject import Subject, Workload

ENVIRONMENT = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def ranks() -> Iterator[RankPool]:
    with RankPool([RankLocation((), ENVIRONMENT)] * 3, "127.0.0.1") as pool:
        yield pool


@pytest.mark.parametrize("in_turn", [True, False])
def test_puts_arrive_whole_and_each_before_its_signal(in_turn: bool, ranks: RankPool) -> None:
    sizes = [1, 70_000, 3, 1_000_000, 8]
    for right in ranks.call("overlap_on_rank:exchange", sizes=sizes, in_turn=in_turn):
        assert right == [True] * (2 * len(sizes))


def test_a_signal_that_nobody_sets_is_named_with_rank_and_values(ranks: RankPool) -> None:
    for rank, said in enumerate(ranks.call("overlap_on_rank:wait_in_vain")):
        assert said == f"rank {rank} waited 0.3 s for its signal 2 to be 5; it is 0"


def test_a_lost_peer_ends_a_wait_at_once(ranks: RankPool) -> None:
    *others, _ = ranks.call("overlap_on_rank:lose_a_peer")
    for rank, said in enumerate(others):
        assert said.startswith(f"rank {rank} lost ")


@pytest.mark.parametrize(
    ("ranks", "topology", "links", "shaped"),
    [(2, "switch", 1, 1), (4, "switch", 4, 4), (4, "full_mesh", 10, 6)],
)
def test_a_workload_has_its_links(ranks: int, topology: Any, links: int, shaped: int) -> None:
    network = topology_of(Workload(operation="ag_gemm", ranks=ranks, topology=topology))
    assert len(network.links) == links
    assert len(shaped_links(network)) == shaped
    for link in shaped_links(network):
        ends = network.links[link][:2]
        assert topology == "switch" or ranks == 2 or not set(ends) & set(network.hosts)


@pytest.mark.parametrize("frame_B", [FRAME_B - 1, 65550])
def test_impossible_frames_are_refused(frame_B: int) -> None:
    with pytest.raises(TopologyError, match=f"frames of {frame_B} B: expected 1514 to 65549"):
        Topology(("a", "b"), (), (Link("a", "b"),), frame_B)


def test_experts_that_do_not_divide_by_ranks_are_refused_in_one_line() -> None:
    with pytest.raises(Unavailable, match="7 experts do not divide by 2 ranks"):
        overlap.build({"operation": "dispatch", "experts": 7}, 0)


@pytest.mark.parametrize(
    ("algorithm", "lanes"),
    [
        ("in_sequence", {"run": 1, "arrivals": 1, "computation": 1}),
        ("symmetric", {"run": 1, "arrivals": 8, "computation": 12}),
    ],
)
def test_a_recorded_run_has_every_part_and_every_arrival(
    algorithm: str, lanes: dict[str, int], ranks: RankPool
) -> None:
    on_rank, given = "suites.overlap.on_rank", {"operation": "ag_gemm", "ranks": 3, "m": 48, "k": 8, "n": 8}
    ranks.call(f"{on_rank}:begin", addresses=["127.0.0.1"] * 3)
    ranks.call(f"{on_rank}:make", key="a", subject={"workload": given, "seed": 0, "algorithm": algorithm})
    ranks.call(f"{on_rank}:seconds", key="a", what="run", chunks=4, count=1)
    for recorded in ranks.call(f"{on_rank}:spans", key="a", chunks=4):
        assert {lane: len(spans) for lane, spans in recorded.items()} == lanes
        ((start_s, stop_s),) = recorded["run"]
        assert all(begin_s <= end_s <= stop_s for spans in recorded.values() for begin_s, end_s in spans)
        assert all(start_s <= begin_s for begin_s, _ in recorded["computation"])
    assert ranks.call(f"{on_rank}:error", key="a", chunks=4) == pytest.approx([0, 0, 0], abs=1e-5)


def test_a_wrong_result_is_no_time() -> None:
    class Wrong:
        def slowest_s(self, *given: Any) -> list[float]:
            return [1.0]

        def call(self, function: str, **given: Any) -> list[float]:
            return [0.0, float("nan")]

    session: Any = overlap.Session(Subject(Workload(operation="ag_gemm"), 0), Wrong(), "key")  # type: ignore[arg-type]
    with pytest.raises(WrongResult, match="rank 1 is off by nan"):
        overlap.check(session)
