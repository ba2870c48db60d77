"""What a rank does in the tests of kernels on symmetric memory: each kernel on small inputs, several times.

A case takes the kernel's module, so that a changed copy of it can be run in its place.
"""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from suites.overlap.symmetric.heap import Heaps, SignalTimeout, SymmetricHeap, gpu_heaps, shared_heaps
from suites.overlap.symmetric.memory_trace import traced

HEAP_B = 1 << 20
ROUNDS = 3
"""Calls of each kernel: the later ones use memory and signals again; some memory only every second call."""

Results = Iterator[tuple[Tensor, Tensor]]  # what a kernel gives, and what is due


def seeded(seed: int) -> torch.Generator:
    """Return a generator for the device of the heap, which has the same numbers on every rank."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def ag_gemm(module: ModuleType, heap: SymmetricHeap, m: int = 40, k: int = 48, n: int = 70) -> Results:
    operation = module.AllGatherGemm(heap, m, k, torch.float32)
    for seed in range(ROUNDS):
        generator = seeded(seed)
        x, w = (torch.randn(*shape, generator=generator) for shape in ((heap.ranks * m, k), (k, n)))
        yield operation(x[heap.rank * m : (heap.rank + 1) * m], w), x.double() @ w.double()


def gemm_rs(module: ModuleType, heap: SymmetricHeap, m: int = 70, k: int = 24, n: int = 65) -> Results:
    operation = module.GemmReduceScatter(heap, m, n, torch.float32)
    for seed in range(ROUNDS):
        generator = seeded(seed)
        x = torch.randn(heap.ranks, heap.ranks * m, k, generator=generator)
        w = torch.randn(heap.ranks, k, n, generator=generator)
        expected = torch.bmm(x.double(), w.double()).sum(0)
        yield operation(x[heap.rank], w[heap.rank]), expected[heap.rank * m : (heap.rank + 1) * m]


TOKENS, HIDDEN, LOCAL_EXPERTS, CHOICES = 7, 33, 3, 2


def routed(ranks: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return each rank's tokens and their experts: uneven; in the first round, all have rank 0's experts."""
    generator = seeded(seed)
    tokens = [0 if seed and rank == seed else TOKENS - rank for rank in range(ranks)]
    experts = LOCAL_EXPERTS * ranks if seed else LOCAL_EXPERTS
    chosen = [torch.rand(one, experts, generator=generator).argsort(1)[:, :CHOICES] for one in tokens]
    return [torch.randn(one, HIDDEN, generator=generator) for one in tokens], chosen


def rows_of(expert: int, tokens: list[Tensor], chosen: list[Tensor]) -> Tensor:
    """Return the tokens that chose the expert, by rank and token."""
    return torch.cat([x[(experts == expert).any(1)] for x, experts in zip(tokens, chosen, strict=True)])


def moe_dispatch(module: ModuleType, heap: SymmetricHeap) -> Results:
    experts = LOCAL_EXPERTS * heap.ranks
    operation = module.MoeDispatch(heap, TOKENS, HIDDEN, experts, CHOICES, torch.float32)
    own = range(heap.rank * LOCAL_EXPERTS, (heap.rank + 1) * LOCAL_EXPERTS)
    for seed in range(ROUNDS):
        tokens, chosen = routed(heap.ranks, seed)
        result = operation(tokens[heap.rank], chosen[heap.rank])
        expected = [rows_of(expert, tokens, chosen) for expert in own]
        yield result.rows, torch.cat(expected)
        yield result.rows_per_expert, torch.tensor([len(one) for one in expected])
        counts = torch.stack([one.flatten().bincount(minlength=experts) for one in chosen])
        yield result.routes.counts.long(), counts
        places = chosen[heap.rank].flatten().argsort(stable=True).argsort()
        yield result.routes.places.flatten().long(), places


def moe_combine(module: ModuleType, heap: SymmetricHeap) -> Results:
    experts = LOCAL_EXPERTS * heap.ranks
    operation = module.MoeCombine(heap, TOKENS, HIDDEN, experts, CHOICES, torch.float32)
    for seed in range(ROUNDS):
        tokens, chosen = routed(heap.ranks, seed)
        scales = torch.arange(1.0, experts + 1)  # what an expert multiplies by
        own = range(heap.rank * LOCAL_EXPERTS, (heap.rank + 1) * LOCAL_EXPERTS)
        y = torch.cat([scales[expert] * rows_of(expert, tokens, chosen) for expert in own])
        counts = torch.stack([one.flatten().bincount(minlength=experts) for one in chosen]).int()
        x, mine = tokens[heap.rank], chosen[heap.rank]
        places = mine.flatten().argsort(stable=True).argsort().int().view_as(mine)
        weights = torch.rand(mine.shape, generator=seeded(seed))
        factors = (weights.double() * scales[mine].double()).sum(1, keepdim=True)
        yield operation(y, module.Routes(counts, places), weights), x.double() * factors


def low_latency_allgather(
    module: ModuleType, heap: SymmetricHeap, shape: tuple[int, ...] = (7, 74)
) -> Results:
    operation = module.LowLatencyAllGather(heap, shape, torch.bfloat16)
    for seed in range(ROUNDS):
        x = torch.randn(heap.ranks, *shape, generator=seeded(seed)).bfloat16()
        yield operation(x[heap.rank]), x


def flash_decode(
    module: ModuleType, heap: SymmetricHeap, batch: int = 2, heads: int = 3, kv_heads: int = 1, size: int = 20
) -> Results:
    operation = module.FlashDecode(heap, batch, heads, size)
    for seed in range(ROUNDS):
        generator = seeded(seed)
        lengths = [(130, 17, 3, 0)[(rank + seed) % 4] for rank in range(heap.ranks)]
        q = torch.randn(batch, heads, size, generator=generator)
        k, v = torch.randn(2, batch, kv_heads, sum(lengths), size, generator=generator)
        own = [one.split(lengths, dim=2)[heap.rank] for one in (k, v)]
        k, v = (one.double().repeat_interleave(heads // kv_heads, 1) for one in (k, v))
        logits = torch.einsum("bhd,bhld->bhl", q.double(), k) / size**0.5
        yield operation(q, *own), torch.einsum("bhl,bhld->bhd", logits.softmax(-1), v)


KERNELS = (ag_gemm, gemm_rs, moe_dispatch, moe_combine, low_latency_allgather, flash_decode)
CASES: dict[str, Callable[..., Results]] = {one.__name__: one for one in KERNELS}


def run(
    state: dict[str, Any], name: str, late_s: float = 0.0, timeout_s: float = 60.0, absent: int | None = None
) -> list[float] | None:
    """Return the error of each result. `late_s`: see `be_late`. `absent`: a rank that does nothing."""
    heap = SymmetricHeap(heaps(), dist.get_rank(), int(timeout_s * 1e9))
    if heap.rank == absent:
        return None
    be_late(heap, late_s)
    with heap._heaps.own.device:
        errors = [error(*pair) for pair in CASES[name](_module(name), heap)]
    dist.barrier()
    return errors


SMALL: dict[str, dict[str, Any]] = {
    "ag_gemm": {"m": 4, "k": 5, "n": 40},
    "gemm_rs": {"m": 4, "k": 5, "n": 70},
    "low_latency_allgather": {"shape": (5, 4)},
    "flash_decode": {"batch": 1, "heads": 2, "size": 3},
}
"""Sizes of recorded kernels: the first two still have two tiles per shard."""

EXPERTS = {"TOKENS": 4, "HIDDEN": 9, "LOCAL_EXPERTS": 2}
"""Those of the exchanges of experts, which share `routed`."""


def recorded(
    state: dict[str, Any], name: str, folder: str, source: str | None, late_s: float, timeout_s: float
) -> dict[str, Any]:
    """Return the accesses, errors and failure of a kernel of `source`, else of this project's module."""
    globals().update(EXPERTS)
    heap = SymmetricHeap(shared_heaps(HEAP_B), dist.get_rank(), int(timeout_s * 1e9))
    module, errors, failure = _module(name, source), [], None
    be_late(heap, late_s)
    with traced(heap, Path(folder) / "number") as accesses:
        try:
            for pair in CASES[name](module, heap, **SMALL.get(name, {})):
                errors.append(error(*pair))
        except Exception as raised:  # a mutant may fail in any way, and its pool is used again
            failure = f"{type(raised).__name__}: {raised}"
    return {"accesses": accesses, "errors": errors, "failure": failure}


def be_late(heap: SymmetricHeap, late_s: float) -> None:
    """Begin so much later than the rank before; less than 0, than the one behind."""
    time.sleep(late_s * heap.rank if late_s >= 0 else late_s * (heap.rank + 1 - heap.ranks))


def heaps() -> Heaps:
    """Return memory of a GPU per rank where there are as many (never tried), else of the host."""
    if torch.cuda.device_count() < dist.get_world_size():
        return shared_heaps(HEAP_B)
    torch.cuda.set_device(dist.get_rank())
    return gpu_heaps(HEAP_B)


def die_in_a_put(state: dict[str, Any], name: str, victim: int, timeout_s: float) -> str:
    """Kill the victim after its interpreted kernel's first store to a peer; return what others raise."""
    heap = SymmetricHeap(shared_heaps(HEAP_B), dist.get_rank(), int(timeout_s * 1e9))
    if heap.rank == victim:
        for operation in ("create_masked_store", "create_atomic_store"):
            setattr(InterpreterBuilder, operation, _dying(heap, getattr(InterpreterBuilder, operation)))
    try:
        list(CASES[name](_module(name), heap))
    except SignalTimeout as error:
        return str(error)
    return ""


def _dying(heap: SymmetricHeap, given: Any) -> Any:
    first, last = (int(heap._heaps.addresses[one]) for one in (0, -1))
    own = range(heap._heaps.own.data_ptr(), heap._heaps.own.data_ptr() + HEAP_B)

    def store(builder: Any, pointers: Any, *rest: Any) -> Any:
        result, address = given(builder, pointers, *rest), int(pointers.data.flat[0])
        if first <= address < last + HEAP_B and address not in own:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return store


def error(result: Tensor, expected: Tensor) -> float:
    """Return the largest error over the largest value; where both have one dtype, all bits must be equal."""
    if result.shape != expected.shape:
        return math.inf
    if result.dtype == expected.dtype:
        return 0.0 if torch.equal(result, expected) else math.inf
    return float((result.double() - expected).abs().max() / expected.abs().max()) if len(result) else 0.0


def _module(name: str, source: str | None = None) -> ModuleType:
    if source is None:
        return importlib.import_module(f"suites.overlap.symmetric.{name}")
    spec: Any = importlib.util.spec_from_file_location(Path(source).stem, source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
