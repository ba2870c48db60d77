"""What a rank of the overlap suite does; `harness.instruments.distributed.rank_pool` calls it by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import use_ring_reduce_scatter
from harness.instruments.distributed.rank_worker import RankState
from suites.overlap.one_sided import OneSided
from suites.overlap.operations.all_gather import SmallAllGather, TimedFlashDecode
from suites.overlap.operations.collectives import Spans, spanned
from suites.overlap.operations.experts import Combine, Dispatch
from suites.overlap.operations.gemms import AllGatherMoe, TimedAllGatherGemm, TimedGemmReduceScatter
from suites.overlap.operations.training_step import TensorParallelStep
from suites.overlap.symmetric.heap import SymmetricHeap, shared_heaps
from suites.overlap.workload import Subject, Workload

TimedOperation = (
    TimedAllGatherGemm | TimedGemmReduceScatter | Dispatch | Combine | TensorParallelStep | SmallAllGather
)
LINKED: Mapping[str, Callable[[Subject, OneSided], TimedOperation]] = {
    "ag_gemm": TimedAllGatherGemm,
    "gemm_rs": TimedGemmReduceScatter,
    "ag_moe": AllGatherMoe,
    "dispatch": Dispatch,
    "combine": Combine,
    "training_step": TensorParallelStep,
}
IN_MEMORY: Mapping[str, Callable[[Subject, SymmetricHeap], TimedOperation]] = {
    "all_gather": SmallAllGather,
    "flash_decode": TimedFlashDecode,
}
WORD_B = 8
BUFFERS = 2

CPU_RUNS = 3


def begin(state: RankState, addresses: list[str] | None) -> None:
    """Connect to the peers by these addresses, one per rank."""
    torch.set_num_threads(1)
    use_ring_reduce_scatter()
    if addresses is not None:
        state["link"] = OneSided(addresses[dist.get_rank()])


def make(state: RankState, key: str, subject: Mapping[str, Any]) -> None:
    """Keep a variant's operation under `key`."""
    variant = Subject(**{**subject, "workload": Workload(**subject["workload"])})
    name = variant.workload.operation
    if name in LINKED:
        link: OneSided = state["link"]
        first = link.buffers
        state[key] = LINKED[name](variant, link)
        state.setdefault("buffers", {})[key] = range(first, link.buffers)
    else:
        heap_B = BUFFERS * variant.workload.ranks * variant.workload.message_elements * WORD_B
        heap = SymmetricHeap(shared_heaps(heap_B), dist.get_rank())
        state[key] = IN_MEMORY[name](variant, heap)
    dist.barrier()


def drop(state: RankState, key: str) -> None:
    """Release the operation, and what its link knows of its memory."""
    state.pop(key, None)
    for buffer in state.get("buffers", {}).pop(key, ()):
        state["link"].release(buffer)


def seconds(state: RankState, key: str, what: str, chunks: int, count: int, calls: int = 1) -> list[float]:
    """Return the seconds of `count` runs of the operation ("run"), or of "compute" or "communicate" alone.

    Ranks begin each run together. Of a run of several calls the mean is returned.
    """
    operation: TimedOperation = state[key]
    work: Callable[[], None] = {
        "run": lambda: operation.run(chunks),
        "compute": operation.compute,
        "communicate": lambda: operation.communicate(chunks),
    }[what]
    taken_s = []
    for _ in range(count):
        if "link" in state:
            state["link"].reset()
        dist.barrier()
        begin_s = time.perf_counter()
        for _ in range(calls):
            work()
        taken_s.append((time.perf_counter() - begin_s) / calls)
    return taken_s


def cpu_s(state: RankState, key: str, chunks: int) -> float:
    """Return the processor time of this rank, all its threads', per run of the communication alone."""
    begin_s = time.process_time()
    seconds(state, key, "communicate", chunks, CPU_RUNS)
    return (time.process_time() - begin_s) / CPU_RUNS


def spans(state: RankState, key: str, chunks: int) -> Spans:
    """Return when each lane was busy in one run of an all-gather and GEMM, and under "run" when that was."""
    operation, link = state[key], state["link"]
    assert isinstance(operation, TimedAllGatherGemm)
    recorded: Spans = {}
    operation.gather.spans, link.arrivals = recorded, []
    link.reset()
    dist.barrier()
    try:
        spanned(recorded, "run", operation.run, chunks)
    finally:
        arrivals, operation.gather.spans, link.arrivals = link.arrivals, None, None
    return {"arrivals": arrivals, **recorded} if arrivals else recorded


def error(state: RankState, key: str, chunks: int) -> float:
    """Run the operation once, without anything that an earlier run received, and return its error."""
    operation: TimedOperation = state[key]
    operation.forget()
    seconds(state, key, "run", chunks, 1)
    return operation.error()


def sent_B(state: RankState, key: str) -> float:
    """Return the bytes that this rank must send in a run."""
    operation: TimedOperation = state[key]
    return operation.sent_B


def collectives(state: RankState, key: str) -> list[tuple[float, float]]:
    """Return what `TensorParallelStep.collectives` does, of a training step."""
    operation = state[key]
    assert isinstance(operation, TensorParallelStep)
    return operation.collectives()
