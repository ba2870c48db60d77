"""Kernels on symmetric memory: interpreted by several processes, and compiled for five GPUs.

Results against float64 or exact values; memory order in the assembly, and no spills.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

import pytest
import torch
import triton.language as tl
from kernel_errors import EVERY_TARGET
from overlap_on_rank import pool_of
from symmetric_on_rank import CASES

from harness.instruments.distributed.rank_pool import RankFailed, RankPool
from harness.instruments.triton_kernels.targets import NVIDIA, TARGETS, Compilation, assembly, usage
from harness.records import Unavailable
from suites.overlap.symmetric import flash_decode, gemm_rs, moe_dispatch
from suites.overlap.symmetric import low_latency_allgather as low_latency
from suites.overlap.symmetric.heap import HeapFull, Heaps, SymmetricHeap, gpu_heaps


def alone(heap_B: int = 1 << 20, ranks: int = 1) -> SymmetricHeap:
    """Return the heap of rank 0, whose memory stands in for that of the others."""
    own = torch.zeros(heap_B, dtype=torch.uint8)
    return SymmetricHeap(Heaps(own, torch.tensor([own.data_ptr()] * ranks)), 0)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Return four ranks; test_memory_order.py has three, on smaller inputs."""
    with pool_of(4) as pool:
        yield pool


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_pytorch_gives_whichever_rank_is_late(name, ranks):
    for errors in ranks.call("symmetric_on_rank:run", name=name, late_s=0.05):
        assert len(errors) >= 3
        assert max(errors) < 1e-6


@pytest.mark.usefixtures("nothing_left")
def test_a_rank_that_never_signals_is_named_with_the_signal_and_the_values() -> None:
    """Of the kernel that fetches; test_overlap.py kills a rank in each of those that put."""
    said = r"rank 0.*waited 0.5 s for its signal \d+ of ag_gemm to be \d+; it is \d+"
    with pool_of(2) as pool, pytest.raises(RankFailed, match=said):
        pool.call("symmetric_on_rank:run", name="ag_gemm", absent=1, timeout_s=0.5)


def test_sizes_that_do_not_fit_are_refused():
    """A peer's memory would be overwritten."""
    zeros = torch.zeros
    dispatch = moe_dispatch.MoeDispatch(alone(ranks=2), 8, 8, 4, 2, torch.float32)
    with pytest.raises(ValueError, match=r"tokens \(9, 8\) .* there is room for \(8, 8\)"):
        dispatch(zeros(9, 8), zeros(9, 2))
    with pytest.raises(ValueError, match="is not 2 ranks' shards of 4 x 6"):
        gemm_rs.GemmReduceScatter(alone(ranks=2), 4, 6, torch.float32)(zeros(9, 3), zeros(3, 6))
    with pytest.raises(ValueError, match="do not fit q"):
        flash_decode.FlashDecode(alone(ranks=2), 1, 3, 16)(zeros(1, 3, 16), *zeros(2, 1, 2, 9, 16))


@pytest.mark.usefixtures("nothing_left")
def test_a_small_heap_and_a_host_without_gpus_are_named(monkeypatch):
    with pytest.raises(HeapFull, match=r"rank 0 has 1,000 B, 1,000 B free.* need 2,048 B"):
        low_latency.LowLatencyAllGather(alone(1000), (128,), torch.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="needs CUDA, which PyTorch does not find here"):
        gpu_heaps(1 << 20)


MANY_RANKS = 64
"""So many that no compiler unrolls a loop over ranks whole; NVIDIA's leave it as it is."""

ACQUIRE = {"sm_80": r"fence\.acq_rel\.sys", "gfx90a": r"buffer_invl2", "gfx942": r"buffer_inv sc0 sc1"}
ANY_ACQUIRE = r"fence\.(?:acquire|acq_rel)\.sys"
RELEASE = {"gfx90a": r"buffer_wbl2\n", "gfx942": r"buffer_wbl2 sc0 sc1\n"}
ANY_RELEASE = r"(?:atom|red)\.global\.sys\.release\.|(?:atom|red)\.global\.release\.sys\."
POLL = {"gfx90a": r"global_load_dword v.* glc", "gfx942": r"global_load_dword v.* sc0 sc1"}
ANY_POLL = r"ld\.relaxed\.sys\.global\.b32"
SIGNAL = r"global_atomic_(?:swap|add)\b"

SEND_WORD = {"gfx90a": r"global_store_dwordx2 v", "gfx942": r"global_store_dwordx2 v.* sc0 sc1"}
READ_WORD = {"gfx90a": r"global_load_dwordx2 v.* glc", "gfx942": r"global_load_dwordx2 v.* sc0 sc1"}


def kernels(name: str, dtype: str = "bf16") -> Iterator[Compilation]:
    module = importlib.import_module(f"suites.overlap.symmetric.{name}")
    for one in module.compilations() if name == "low_latency_allgather" else module.compilations(dtype):
        ranks = {"RANKS": MANY_RANKS} if "RANKS" in one.constexprs else {}
        yield one._replace(constexprs={**one.constexprs, **ranks})


def calls(compilation: Compilation, name: str) -> int:
    tree = ast.walk(ast.parse(compilation.function.src))
    return sum(isinstance(node, ast.Call) and getattr(node.func, "id", "") == name for node in tree)


def disorder(compilation: Compilation, target: str) -> list[str]:
    """Return where the assembly does not order memory of the whole system as the kernel's source says."""
    waits, notifies = calls(compilation, "wait"), calls(compilation, "notify")
    text = assembly(compilation, target)
    acquires = len(re.findall(ACQUIRE.get(target, ANY_ACQUIRE), text))
    releases = len(re.findall(RELEASE.get(target, ANY_RELEASE), text))
    polls = len(re.findall(POLL.get(target, ANY_POLL), text))
    found = []
    if acquires != waits:
        found.append(f"{acquires} acquires, {waits} waits")
    if polls < waits:
        found.append(f"{polls} polls, {waits} waits")
    if target in NVIDIA:
        if releases != notifies:
            found.append(f"{releases} releases, {notifies} notifies")
    else:  # its compiler unrolls parts of loops
        signals = len(re.findall(SIGNAL, text))
        if releases != signals or bool(signals) != bool(notifies) or signals < notifies:
            found.append(f"{releases} releases, {signals} atomics, {notifies} notifies")
    return found


COMPILED = pytest.mark.skipif(not hasattr(tl, "atomic_poll"), reason="Triton before 3.9 has no atomic_poll")


@COMPILED
@pytest.mark.parametrize(("dtype", "target"), EVERY_TARGET)
@pytest.mark.parametrize("name", CASES)
def test_each_wait_acquires_each_notify_releases_and_nothing_spills(name, dtype, target):
    for compilation in kernels(name, dtype):
        assert not disorder(compilation, target), compilation.name
        assert usage(compilation, target).spilled_registers == 0, compilation.name


@COMPILED
@pytest.mark.parametrize("target", TARGETS)
def test_low_latency_words_are_read_and_written_whole(target: str) -> None:
    (compilation,) = kernels("low_latency_allgather")
    text = assembly(compilation, target)
    assert re.search(SEND_WORD.get(target, r"st\.relaxed\.sys\.global\.b64"), text)
    assert re.search(READ_WORD.get(target, r"ld\.relaxed\.sys\.global(?:\.v2)?\.b64"), text)
