"""The overlap suite's links and puts, and what it refuses; test_every_optimization.py runs its variants."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from places import PYTHONPATH

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.records import Unavailable, WrongResult
from suites.overlap import suite as overlap
from suites.overlap.operations.collectives import RankShare
from suites.overlap.suite import shaped_links, topology_of
from suites.overlap.workload import Subject, Workload

ENVIRONMENT = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
ON_RANK = "suites.overlap.on_rank"
SYMMETRIC = {"seed": 0, "algorithm": "symmetric"}


@pytest.fixture
def ranks() -> Iterator[RankPool]:
    with RankPool([RankLocation((), ENVIRONMENT)] * 3, "127.0.0.1") as pool:
        yield pool


@pytest.mark.usefixtures("nothing_left")
def test_puts_arrive_whole_in_order_and_before_their_link_closes(ranks: RankPool) -> None:
    sizes = [1, 70_000, 3, 1_000_000, 8]
    for in_turn in (True, False):
        for right in ranks.call("overlap_on_rank:exchange", sizes=sizes, in_turn=in_turn):
            assert right == [True] * (2 * len(sizes))
        assert ranks.call("overlap_on_rank:close_after_puts", in_turn=in_turn) == [True] * 3
        raised, *_ = ranks.call("overlap_on_rank:close_while_a_peer_takes_nothing", in_turn=in_turn)
        assert raised == [
            "rank 0 waited 0.3 s for its peers to take its puts",
            "rank 0 has closed its link and cannot put",
            "0 threads",
        ]
    first, *others = ranks.call("overlap_on_rank:put_into_released_memory")
    assert others == [[True, False, 1]] * 2
    reason = "rank 0 lost a connection (a put of 40 B at 0 B is not within its buffer 0)"
    assert first == [True, False, 1, f"{reason} while it waited for its signal 0 to be 1; it is 0"]


@pytest.mark.usefixtures("nothing_left")
def test_a_signal_that_nobody_sets_is_named_and_a_lost_peer_ends_a_wait_at_once(ranks: RankPool) -> None:
    for rank, said in enumerate(ranks.call("overlap_on_rank:wait_in_vain")):
        assert said == f"rank {rank} waited 0.3 s for its signal 2 to be 5; it is 0"
    *others, _ = ranks.call("overlap_on_rank:lose_a_peer")
    for rank, said in enumerate(others):
        assert said.startswith(f"rank {rank} lost ")


def test_an_operation_that_is_dropped_releases_its_buffers(ranks: RankPool) -> None:
    ranks.call(f"{ON_RANK}:begin", addresses=["127.0.0.1"] * 3)
    given = {"operation": "gemm_rs", "ranks": 3, "m": 48, "k": 8, "n": 8}
    for key in ("a", "b"):
        ranks.call(f"{ON_RANK}:make", key=key, subject=SYMMETRIC | {"workload": given})
    received_B = 48 * 8 * 4
    assert ranks.call("overlap_on_rank:buffers_B") == [[received_B] * 2] * 3
    ranks.call(f"{ON_RANK}:drop", key="a")
    assert ranks.call("overlap_on_rank:buffers_B") == [[0, received_B]] * 3
    assert ranks.call(f"{ON_RANK}:error", key="b", chunks=4) == pytest.approx([0, 0, 0], abs=1e-5)


def test_a_workload_has_its_links_and_impossible_ones_are_refused() -> None:
    for ranks, topology, links, shaped in ((2, "switch", 1, 1), (4, "switch", 4, 4), (4, "full_mesh", 10, 6)):
        network = topology_of(Workload(operation="ag_gemm", ranks=ranks, topology=topology))
        assert len(network.links) == links
        assert len(shaped_links(network)) == shaped
        if topology == "full_mesh":
            ends = [set(network.links[link][:2]) for link in shaped_links(network)]
            assert not any(one & set(network.hosts) for one in ends)
    with pytest.raises(Unavailable, match="7 experts do not divide by 2 ranks"):
        overlap.build({"operation": "dispatch", "experts": 7}, 0)


@pytest.mark.parametrize(
    ("algorithm", "lanes"),
    [
        ("in_sequence", {"run": 1, "arrivals": 1, "computation": 1}),
        ("symmetric", {"run": 1, "arrivals": 8, "computation": 9}),
    ],
)
def test_a_recorded_run_has_every_part_and_every_arrival(algorithm, lanes, ranks):
    on_rank, given = "suites.overlap.on_rank", {"operation": "ag_gemm", "ranks": 3, "m": 48, "k": 8, "n": 8}
    ranks.call(f"{on_rank}:begin", addresses=["127.0.0.1"] * 3)
    ranks.call(f"{on_rank}:make", key="a", subject={"workload": given, "seed": 0, "algorithm": algorithm})
    ranks.call(f"{on_rank}:seconds", key="a", what="run", chunks=4, count=1)
    for recorded in ranks.call(f"{on_rank}:spans", key="a", chunks=4):
        counted = {lane: len(spans) for lane, spans in recorded.items()}
        if algorithm == "symmetric":  # the own rows, then per peer 1 to 4 products of what has arrived
            assert 1 + 2 <= counted.pop("computation") <= lanes["computation"]
        assert counted == {lane: lanes[lane] for lane in counted}
        assert {"run", "computation"} <= set(recorded)
        ((start_s, stop_s),) = recorded["run"]
        assert all(begin_s <= end_s <= stop_s for spans in recorded.values() for begin_s, end_s in spans)
        assert all(start_s <= begin_s for begin_s, _ in recorded["computation"])
    assert ranks.call(f"{on_rank}:error", key="a", chunks=4) == pytest.approx([0, 0, 0], abs=1e-5)


@pytest.mark.parametrize("order", ["ring", "full_mesh"])
@pytest.mark.parametrize("chunks", [1, 3, 16])
def test_puts_are_computed_in_groups_no_larger_than_what_was_put_before(order: Any, chunks: int) -> None:
    place: Any = SimpleNamespace(rank=1, ranks=4)
    share = RankShare(Subject(Workload(operation="gemm_rs", ranks=4), 0, "symmetric", order), place)
    put: list[tuple[int, int]] = []
    for peer, first, end in share.put_groups(chunks):
        before = sum(one == peer for one, _ in put) if order == "full_mesh" else len(put)
        assert 1 <= end - first <= max(before, 1)
        put.extend((peer, chunk) for chunk in range(first, end))
    assert sorted(put) == sorted((peer, chunk) for peer in (0, 2, 3) for chunk in range(chunks))
    assert [one for one in put if one[0] == 2] == [(2, chunk) for chunk in range(chunks)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("chunks", [1, 2, 16])
@pytest.mark.parametrize("sent_s", [0.05, 0.5, 0.9, 1.0, 1.1, 3.0])
def test_the_model_of_puts_equals_a_schedule_stepped_chunk_by_chunk(ranks, chunks, sent_s):
    count = (ranks - 1) * chunks
    now_s = 1 / ranks  # the own part, of a computation of 1 s
    for chunk in range(count):
        now_s = max(now_s, (chunk + 1) * sent_s / count) + 1 / (ranks * chunks)
    assert overlap.predicted_time_s("symmetric", 1.0, sent_s, ranks, chunks) == pytest.approx(now_s)


def test_the_pairwise_bound_adds_what_each_collectives_own_products_cannot_hide() -> None:
    cluster: Any = SimpleNamespace(port_B_per_s=100.0, at_once_s=0.5)
    hidden, exposed, alone = (150.0, 4.0), (450.0, 1.0), (250.0, 0.0)  # sent in 1, 4 and 2 s
    # Hidden: all but the first of 16 chunks. Exposed: all but the products, with the first of 2 x 16 of them.
    expected_s = 10 + 1 / 16 + (4 - 1 + 1 / 32) + 2

    def bound_s(products_s: float, sent_s: float) -> float:
        return overlap.overlapped_s(products_s, sent_s, 2, overlap.FIRST_CHUNK)

    found_s = overlap.pairwise_s(10.0, [hidden, exposed, alone], cluster, bound_s)
    assert found_s == pytest.approx(expected_s)
    in_sequence_s = overlap.pairwise_s(
        10.0, [hidden, exposed, alone], cluster, lambda products_s, sent_s: products_s + sent_s
    )
    assert in_sequence_s == pytest.approx(10 + 1 + 4 + 2)
    assert overlap.pairwise_s(10.0, [(40.0, 0.0)], cluster, bound_s) == 10  # the link sends it at once


def test_a_wrong_result_is_no_time() -> None:
    pool = SimpleNamespace(slowest_s=lambda *given: [1.0], call=lambda function, **given: [0.0, float("nan")])
    cluster: Any = pool
    session = overlap.Session(Subject(Workload(operation="ag_gemm"), 0), cluster, "key")
    with pytest.raises(WrongResult, match="rank 1 is off by nan"):
        overlap.check(session)


@pytest.mark.parametrize(
    ("times_s", "chosen"),
    [
        ({1: [1.0, 1.0, 1.0, 1.0], 8: [0.9, 0.9, 0.8, 0.9]}, 8),
        ({1: [1.0, 1.0, 1.0], 2: [0.8, 0.8, 1.3], 8: [0.9, 0.9, 0.9]}, 2),
        ({1: [1.0, 1.0, 1.0], 8: [1.1, 1.2, 1.1]}, 1),
        ({1: [1.0, 1.2, 0.8, 0.85], 4: [0.9, 0.9, 0.9, 0.9]}, 1),
    ],
    ids=["faster in every round", "faster in two of three", "slower", "faster in the median alone"],
)
def test_more_chunks_are_used_only_if_they_were_faster_in_most_rounds(times_s, chosen):
    """At 8 % of communication, chunks of gloo's collectives gain nothing; noise once chose four to eight."""
    assert overlap.fastest_chunks(times_s) == chosen
