"""What a rank does in the tests of kernels on symmetric memory: each kernel on small inputs, several times.

A case takes the kernel's module, so that a changed copy of it can be run in its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.symmetric.heap import SymmetricHeap, shared_heaps

HEAP_B = 1 << 20
ROUNDS = 3
"""Calls of each kernel: the later ones use memory and signals again."""

Case = Callable[[ModuleType, SymmetricHeap], Iterator[tuple[Tensor, Tensor]]]


def ag_gemm(module: ModuleType, heap: SymmetricHeap) -> Iterator[tuple[Tensor, Tensor]]:
    m, k, n = 40, 48, 70
    operation = module.AllGatherGemm(heap, m, k, torch.float32)
    for seed in range(ROUNDS):
        generator = torch.Generator().manual_seed(seed)
        x, w = (torch.randn(*shape, generator=generator) for shape in ((heap.ranks * m, k), (k, n)))
        yield operation(x[heap.rank * m : (heap.rank + 1) * m], w), x.double() @ w.double()


CASES: dict[str, Case] = {"ag_gemm": ag_gemm}


def run(
    state: dict[str, Any],
    name: str,
    source: str | None = None,
    late_s: float = 0.0,
    timeout_s: float = 60.0,
    absent: int | None = None,
) -> list[float] | None:
    """Return the largest error of each call over the largest value.

    `source`: the path of the kernel's module, if it is not this project's. `late_s`: how much later each rank
    begins than the one before. `absent`: a rank that does nothing.
    """
    heap = SymmetricHeap(shared_heaps(HEAP_B), dist.get_rank(), int(timeout_s * 1e9))
    if heap.rank == absent:
        return None
    errors = []
    time.sleep(late_s * heap.rank)
    for result, expected in CASES[name](_module(name, source), heap):
        errors.append(float((result.double() - expected).abs().max() / expected.abs().max()))
    dist.barrier()
    return errors


def _module(name: str, source: str | None) -> ModuleType:
    if source is None:
        return importlib.import_module(f"suites.overlap.symmetric.{name}")
    found = importlib.util.spec_from_file_location(Path(source).stem, source)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
