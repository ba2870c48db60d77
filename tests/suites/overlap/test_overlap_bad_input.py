"""The overlap suite's bad input: each has a named error, and leaves nothing. Other files have more of it."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

import pytest
from marked import network_namespaces, wait_for
from moved import needs_namespaces
from places import PYTHONPATH

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.instruments.distributed.rank_pool import RankFailed, RankLocation, RankPool
from suites.overlap.suite import OverlapCluster
from suites.overlap.symmetric import heap
from suites.overlap.workload import Workload

ENVIRONMENT = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
ON_RANK = "suites.overlap.on_rank"
TIMEOUT_S = 1.0

pytestmark = pytest.mark.usefixtures("nothing_left")


class OutlivedPool(RankPool):
    """A pool that goes on when a rank dies, to hear what the others say; the rank's answer is None."""

    def __init__(self, ranks: int) -> None:
        self.deaths: list[str] = []
        super().__init__([RankLocation((), ENVIRONMENT)] * ranks, "127.0.0.1")

    def _complete_answers(self, number: int, function: str) -> list[bytes]:
        try:
            return super()._complete_answers(number, function)
        except RankFailed as error:
            self.deaths.append(str(error).splitlines()[0])
            self._selector.unregister(self._ranks[number].answers)
            return [b'{"answer": null}']


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_rank_killed_in_the_middle_of_a_put_over_a_link_ends_the_waits_of_all(in_turn: bool) -> None:
    with OutlivedPool(3) as pool:
        *others, dead = pool.call("overlap_on_rank:die_in_a_put", victim=2, in_turn=in_turn)
        assert pool.deaths == ["rank 2 was killed by SIGKILL in die_in_a_put"]
    assert dead is None
    for rank, (said, numbers, closed) in enumerate(others):
        assert said.startswith(f"rank {rank} lost ")
        assert said.endswith(" while it waited for its signal 0 to be 1; it is 0")
        assert numbers == (500 if rank == 0 else 0)
        assert closed


def test_a_rank_killed_in_the_middle_of_a_put_over_namespaces_leaves_none(monkeypatch):
    needs_namespaces()
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
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


@pytest.mark.parametrize("name", WAITED_FOR)
def test_a_rank_killed_in_the_middle_of_a_kernels_put_is_named_by_who_waits_for_it(name: str) -> None:
    with OutlivedPool(2) as pool:
        said, dead = pool.call("symmetric_on_rank:die_in_a_put", name=name, victim=1, timeout_s=TIMEOUT_S)
        assert pool.deaths == ["rank 1 was killed by SIGKILL in die_in_a_put"]
    assert dead is None
    (match,) = [re.fullmatch(f"rank 0 waited 1 s for its {WAITED_FOR[name]}", said)]
    assert match, said


def test_a_rank_killed_in_the_middle_of_a_low_latency_message_is_named_by_who_waits_for_it() -> None:
    with OutlivedPool(2) as pool:
        said, _ = pool.call("overlap_on_rank:die_in_a_message", victim=1)
        assert pool.deaths == ["rank 1 was killed by SIGKILL in die_in_a_message"]
    assert said == "rank 0 waited 0.5 s for the last word of rank 1 to have flag 1; it has 0"


@pytest.mark.parametrize("failing", ["ftruncate", "posix_fallocate"])
def test_memory_that_the_machine_has_not_is_named_with_its_bytes(failing, monkeypatch):
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, failing, full)
    with pytest.raises(heap.HeapFull, match=r"^this machine cannot share 4,096 B: No space left on device$"):
        heap._memory(4096)
    assert set(os.listdir("/proc/self/fd")) == before


def test_rows_that_do_not_divide_by_ranks_are_refused_in_one_line() -> None:
    field = "suite.workloads.ag_gemm_14336_1.m"
    with pytest.raises(ConfigError) as caught:
        load(["suite=overlap", "workloads=[ag_gemm_14336_1]", f"{field}=4097"])
    assert str(caught.value) == f"{field}=4097: expected a multiple of ranks (2)"


def test_rows_that_do_not_divide_by_chunks_give_the_right_result() -> None:
    with RankPool([RankLocation((), ENVIRONMENT)] * 3, "127.0.0.1") as pool:
        pool.call(f"{ON_RANK}:begin", addresses=["127.0.0.1"] * 3)
        for operation in ("ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine"):
            workload = {"operation": operation, "ranks": 3, "m": 129, "k": 8, "n": 12}
            experts = {"experts": 6, "top_k": 2} if operation not in ("ag_gemm", "gemm_rs") else {}
            for algorithm in ("decomposed", "symmetric"):
                for order in ("ring", "full_mesh"):
                    subject = {"workload": workload | experts, "seed": 1, "experts_by": "grouped"}
                    subject |= {"algorithm": algorithm, "order": order}
                    pool.call(f"{ON_RANK}:make", key="key", subject=subject)
                    for chunks in (3, 5):  # of 43 rows
                        for error in pool.call(f"{ON_RANK}:error", key="key", chunks=chunks):
                            assert error < 1e-5, (operation, algorithm, order, chunks)
                    pool.call(f"{ON_RANK}:drop", key="key")
