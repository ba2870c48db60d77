"""Kernels on symmetric memory: interpreted by several processes, against float64 or exact values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton.language as tl
from places import PYTHONPATH
from symmetric_on_rank import CASES, error

from harness.instruments.distributed.rank_pool import RankFailed, RankLocation, RankPool
from harness.records import Unavailable
from suites.overlap.symmetric import ag_gemm, flash_decode, gemm_rs, moe_combine, moe_dispatch
from suites.overlap.symmetric import low_latency_allgather as low_latency
from suites.overlap.symmetric.heap import HeapFull, Heaps, SymmetricHeap, gpu_heaps

ENVIRONMENT = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
MODULES = (ag_gemm, gemm_rs, moe_dispatch, moe_combine, low_latency, flash_decode)


def alone(heap_B: int = 1 << 20, ranks: int = 1) -> SymmetricHeap:
    """Return the heap of rank 0, whose memory stands in for that of the others."""
    own = torch.zeros(heap_B, dtype=torch.uint8)
    return SymmetricHeap(Heaps(own, torch.tensor([own.data_ptr()] * ranks)), 0)


@pytest.fixture(scope="module", params=[(3, 0.05), (4, 0.0)], ids=["3 ranks, each later", "4 ranks"])
def ranks(request: pytest.FixtureRequest) -> Iterator[tuple[RankPool, float]]:
    count, late_s = request.param
    with RankPool([RankLocation((), ENVIRONMENT)] * count, "127.0.0.1") as pool:
        yield pool, late_s


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_pytorch_gives_whichever_rank_is_late(
    name: str, ranks: tuple[RankPool, float]
) -> None:
    pool, late_s = ranks
    for errors in pool.call("symmetric_on_rank:run", name=name, late_s=late_s):
        assert len(errors) >= 3
        assert max(errors) < 1e-6


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_a_kernel_runs_on_one_rank(module: Any) -> None:
    for result, expected in CASES[module.__name__.split(".")[-1]](module, alone()):
        assert error(result, expected) < 1e-6


def test_experts_outputs_return_to_their_tokens() -> None:
    heap, tokens, chosen = alone(), torch.randn(5, 40), torch.tensor([[1, 0], [0, 2], [2, 1], [1, 2], [0, 1]])
    dispatched = moe_dispatch.MoeDispatch(heap, 5, 40, 3, 2, torch.float32)(tokens, chosen)
    combine = moe_combine.MoeCombine(heap, 5, 40, 3, 2, torch.float32)
    halves = torch.full((5, 2), 0.5)
    assert torch.equal(combine(dispatched.rows, dispatched.routes, halves), tokens)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_never_signals_is_named_with_the_signal_and_the_values(name: str) -> None:
    with RankPool([RankLocation((), ENVIRONMENT)] * 2, "127.0.0.1") as pool:
        said = r"rank 0.*waited 0.5 s for its (signal|word) \d+ of \w+ to be \d+; it is \d+"
        with pytest.raises(RankFailed, match=said):
            pool.call("symmetric_on_rank:run", name=name, absent=1, timeout_s=0.5)


REFUSED: dict[str, tuple[Callable[[SymmetricHeap], Any], str]] = {
    "experts of dispatch": (
        lambda heap: moe_dispatch.MoeDispatch(heap, 8, 8, 7, 2, torch.float32),
        "7 experts do not divide into 2 ranks",
    ),
    "experts of combine": (
        lambda heap: moe_combine.MoeCombine(heap, 8, 8, 7, 2, torch.float32),
        "7 experts do not divide into 2 ranks",
    ),
    "too many tokens": (
        lambda heap: moe_dispatch.MoeDispatch(heap, 8, 8, 4, 2, torch.float32)(
            torch.zeros(9, 8), torch.zeros(9, 2)
        ),
        r"tokens \(9, 8\) with choices \(9, 2\): there is room for \(8, 8\) with \(8, 2\)",
    ),
    "rows of a shard": (
        lambda heap: gemm_rs.GemmReduceScatter(heap, 4, 6, torch.float32)(
            torch.zeros(9, 3), torch.zeros(3, 6)
        ),
        r"x \(9, 3\) @ w \(3, 6\) is not 2 ranks' shards of 4 x 6",
    ),
    "half a word": (
        lambda heap: low_latency.LowLatencyAllGather(heap, (3, 5), torch.bfloat16),
        r"sends words of 4 B; \(3, 5\) of torch.bfloat16 are 30 B",
    ),
    "heads of a group": (
        lambda heap: flash_decode.FlashDecode(heap, 1, 3, 16)(
            torch.zeros(1, 3, 16), *torch.zeros(2, 1, 2, 9, 16)
        ),
        r"k \(1, 2, 9, 16\) and v \(1, 2, 9, 16\) do not fit q \(1, 3, 16\)",
    ),
}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("what", REFUSED)
def test_sizes_that_do_not_fit_are_refused(what: str) -> None:
    make, said = REFUSED[what]
    with pytest.raises(ValueError, match=said):
        make(alone(ranks=2))


@pytest.mark.usefixtures("nothing_left")
def test_a_heap_that_is_too_small_is_named_with_its_bytes() -> None:
    with pytest.raises(HeapFull, match=r"rank 0 has 1,000 B, 1,000 B free.* need 2,048 B"):
        low_latency.LowLatencyAllGather(alone(1000), (128,), torch.float32)


@pytest.mark.usefixtures("nothing_left")
def test_triton_without_a_poll_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = low_latency.LowLatencyAllGather(alone(), (4,), torch.float32)
    monkeypatch.delattr(tl, "atomic_poll")
    with pytest.raises(Unavailable, match=r"needs tl.atomic_poll of Triton 3.9; this is"):
        gather(torch.zeros(4))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_memory_of_gpus_is_unavailable_without_cuda() -> None:
    with pytest.raises(Unavailable, match="needs CUDA, which PyTorch does not find here"):
        gpu_heaps(1 << 20)
