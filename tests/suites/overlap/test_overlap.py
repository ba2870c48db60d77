"""The overlap suite's links, puts and killed ranks; test_every_optimization.py runs its variants."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from marked import network_namespaces, wait_for
from moved import needs_namespaces
from overlap_on_rank import pool_of
from places import PYTHONPATH

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.instruments.distributed.rank_pool import RankFailed, RankPool
from harness.records import Unavailable, WrongResult
from suites.overlap import suite as overlap
from suites.overlap.suite import OverlapCluster
from suites.overlap.symmetric import heap
from suites.overlap.workload import Subject, Workload

ON_RANK = "suites.overlap.on_rank"


@pytest.fixture
def ranks() -> Iterator[RankPool]:
    with pool_of(3) as pool:
        yield pool


@pytest.mark.usefixtures("nothing_left")
def test_puts_arrive_whole_in_order_and_before_their_link_closes(ranks: RankPool) -> None:
    sizes = [1, 70_000, 3, 1_000_000, 8]
    for in_turn in (True, False):
        for right in ranks.call("overlap_on_rank:exchange", sizes=sizes, in_turn=in_turn):
            assert right == [True] * (2 * len(sizes))
        assert ranks.call("overlap_on_rank:close_after_puts", in_turn=in_turn) == [True] * 3
        late, closed, threads = ranks.call(
            "overlap_on_rank:close_while_a_peer_takes_nothing", in_turn=in_turn
        )[0]
        assert "waited 0.3 s for its peers" in late
        assert "has closed its link" in closed
        assert threads == "0 threads"
    first, *others = ranks.call("overlap_on_rank:put_into_released_memory")
    assert others == [[True, False, 1]] * 2
    assert first[:3] == [True, False, 1]
    assert "a put of 40 B at 0 B is not within its buffer 0" in first[3]
    for rank, said in enumerate(ranks.call("overlap_on_rank:wait_in_vain")):
        assert said == f"rank {rank} waited 0.3 s for its signal 2 to be 5; it is 0"


def begun(pool: RankPool) -> None:
    pool.call(f"{ON_RANK}:begin", addresses=["127.0.0.1"] * len(pool))


def test_rows_that_do_not_divide_by_chunks_give_the_right_result(ranks) -> None:
    begun(ranks)
    for operation in ("ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine"):
        workload = {"operation": operation, "ranks": 3, "m": 129, "k": 8, "n": 12}
        experts = {"experts": 6, "top_k": 2} if operation not in ("ag_gemm", "gemm_rs") else {}
        for algorithm in ("decomposed", "symmetric"):
            for order in ("ring", "full_mesh"):
                subject = {"workload": workload | experts, "seed": 1, "experts_by": "grouped"}
                subject |= {"algorithm": algorithm, "order": order}
                ranks.call(f"{ON_RANK}:make", key="key", subject=subject)
                for chunks in (3, 5):  # of 43 rows
                    for error in ranks.call(f"{ON_RANK}:error", key="key", chunks=chunks):
                        assert error < 1e-5, (operation, algorithm, order, chunks)
                ranks.call(f"{ON_RANK}:drop", key="key")


class OutlivedPool(RankPool):
    """A pool that goes on when a rank dies, to hear what the others say; the rank's answer is None."""

    def __init__(self, *given: Any) -> None:
        self.deaths: list[str] = []
        super().__init__(*given)

    def _complete_answers(self, number: int, function: str) -> list[bytes]:
        try:
            return super()._complete_answers(number, function)
        except RankFailed as error:
            self.deaths.append(str(error).splitlines()[0])
            self._selector.unregister(self._ranks[number].answers)
            return [b'{"answer": null}']


def outlived(ranks: int, function: str, **given: Any) -> list[Any]:
    """Return the answers of all ranks but the last, which is killed in that function."""
    with pool_of(ranks, OutlivedPool) as pool:
        *others, dead = pool.call(function, victim=ranks - 1, **given)
        assert pool.deaths == [f"rank {ranks - 1} was killed by SIGKILL in {function.partition(':')[2]}"]
    assert dead is None
    return others


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("in_turn", [True, False])
def test_a_rank_killed_in_the_middle_of_a_put_over_a_link_ends_the_waits_of_all(in_turn: bool) -> None:
    others = outlived(3, "overlap_on_rank:die_in_a_put", in_turn=in_turn)
    for rank, (said, numbers, closed) in enumerate(others):
        assert said.startswith(f"rank {rank} lost ")
        assert said.endswith(" while it waited for its signal 0 to be 1; it is 0")
        assert numbers == (500 if rank == 0 else 0)
        assert closed


@pytest.mark.usefixtures("nothing_left")
def test_a_rank_killed_in_the_middle_of_a_put_over_namespaces_leaves_none(monkeypatch):
    needs_namespaces()
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    before = network_namespaces()
    cluster = OverlapCluster(Workload(operation="ag_gemm", m=8, k=8, n=8))
    try:
        inside = {os.readlink(f"/proc/{pid}/ns/net") for pid in cluster.pool.pids}
        assert len(inside - before) == 2
        with pytest.raises(RankFailed, match=r"^rank 1 was killed by SIGKILL in die_in_a_put"):
            cluster.pool.call("overlap_on_rank:die_in_a_put", victim=1, in_turn=False)
        assert len(cluster.pool) == 0
    finally:
        cluster.close()
    wait_for(lambda: not inside & network_namespaces(), limit_s=20)


WAITED_FOR = {
    "gemm_rs": r"signal \d+ of gemm_rs to be 1; it is 0",
    "moe_dispatch": r"signal \d+ of moe_dispatch to be \d+; it is \d+",
    "moe_combine": r"signal \d+ of moe_combine to be \d+; it is \d+",
    "flash_decode": r"signal \d+ of gather_and_merge to be 1; it is 0",
    "low_latency_allgather": r"word \d+ of low_latency_allgather to be 1; it is 0",
}
"""Of the kernels that put; AllGather + GEMM fetches."""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", WAITED_FOR)
def test_a_rank_killed_in_the_middle_of_a_kernels_put_is_named_by_who_waits_for_it(name: str) -> None:
    (said,) = outlived(2, "symmetric_on_rank:die_in_a_put", name=name, timeout_s=1.0)
    assert re.fullmatch(f"rank 0 waited 1 s for its {WAITED_FOR[name]}", said), said


@pytest.mark.usefixtures("nothing_left")
def test_a_rank_killed_in_the_middle_of_a_low_latency_message_is_named_by_who_waits_for_it() -> None:
    (said,) = outlived(2, "overlap_on_rank:die_in_a_message")
    assert said == "rank 0 waited 0.5 s for the last word of rank 1 to have flag 1; it has 0"


def test_memory_that_the_machine_has_not_is_named_with_its_bytes(monkeypatch):
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(heap.HeapFull, match=r"^this machine cannot share 4,096 B: No space left on device$"):
        heap._memory(4096)
    assert set(os.listdir("/proc/self/fd")) == before


def test_impossible_workloads_are_refused() -> None:
    field = "suite.workloads.ag_gemm_14336_1.m"
    with pytest.raises(ConfigError, match=f"^{field}=4097: "):
        load(["suite=overlap", "workloads=[ag_gemm_14336_1]", f"{field}=4097"])
    for workload, said in (
        ({"operation": "dispatch", "experts": 7}, "7 experts do not divide by 2 ranks"),
        ({"operation": "training_step", "ranks": 3, "m": 6}, "3 ranks do not divide by 2 of tensor"),
    ):
        with pytest.raises(Unavailable, match=said):
            overlap.build(workload, 0)


@pytest.mark.parametrize("sent_s", [0.05, 0.9, 3.0])
def test_the_model_of_puts_equals_a_schedule_stepped_chunk_by_chunk(sent_s):
    for ranks, chunks in ((2, 1), (2, 16), (4, 2)):
        count = (ranks - 1) * chunks
        now_s = 1 / ranks  # the own part, of a computation of 1 s
        for chunk in range(count):
            now_s = max(now_s, (chunk + 1) * sent_s / count) + 1 / (ranks * chunks)
        assert overlap.predicted_time_s("symmetric", 1.0, sent_s, ranks, chunks) == pytest.approx(now_s)


def test_the_pairwise_bound_adds_what_each_collectives_own_products_cannot_hide() -> None:
    cluster: Any = SimpleNamespace(port_B_per_s=100.0, at_once_s=0.5)
    three = [(150.0, 4.0), (450.0, 1.0), (250.0, 0.0)]  # sent in 1, 4 and 2 s: hidden, exposed, alone

    def bound_s(products_s: float, sent_s: float) -> float:
        return overlap.overlapped_s(products_s, sent_s, 2, overlap.FIRST_CHUNK)

    # Hidden: all but the first of 16 chunks. Exposed: all but the products, with the first of 2 x 16 of them.
    expected_s = 10 + 1 / 16 + (4 - 1 + 1 / 32) + 2
    assert overlap.pairwise_s(10.0, three, cluster, bound_s) == pytest.approx(expected_s)
    in_sequence_s = overlap.pairwise_s(10.0, three, cluster, lambda products_s, sent_s: products_s + sent_s)
    assert in_sequence_s == pytest.approx(10 + 1 + 4 + 2)
    assert overlap.pairwise_s(10.0, [(40.0, 0.0)], cluster, bound_s) == 10  # the link sends it at once


def test_a_wrong_result_is_no_time() -> None:
    cluster: Any = SimpleNamespace(call=lambda function, **given: [0.0, float("nan")])
    session = overlap.Session(Subject(Workload(operation="ag_gemm"), 0), cluster, "key")
    with pytest.raises(WrongResult, match="rank 1 is off by nan"):
        overlap.check(session)


@pytest.mark.parametrize(
    ("times_s", "chosen"),
    [
        ({1: [1.0, 1.0, 1.0], 2: [0.8, 0.8, 1.3], 8: [0.9, 0.9, 0.9]}, 2),
        ({1: [1.0, 1.0, 1.0], 8: [1.1, 1.2, 1.1]}, 1),
        ({1: [1.0, 1.2, 0.8, 0.85], 4: [0.9, 0.9, 0.9, 0.9]}, 1),
    ],
)
def test_more_chunks_are_used_only_if_they_were_faster_in_most_rounds(times_s, chosen):
    """At 8 % of communication, chunks of gloo's collectives gain nothing; noise once chose four to eight."""
    assert overlap.fastest_chunks(times_s) == chosen
