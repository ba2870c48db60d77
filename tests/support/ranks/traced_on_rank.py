"""What a rank does in the tests of memory order: a kernel of `symmetric_on_rank`, recorded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import symmetric_on_rank
import torch.distributed as dist
from symmetric_on_rank import CASES, HEAP_B, _module, error

from suites.overlap.symmetric.heap import SymmetricHeap, shared_heaps
from suites.overlap.symmetric.memory_trace import traced

SMALL: dict[str, dict[str, Any]] = {
    "ag_gemm": {"m": 4, "k": 5, "n": 40},
    "gemm_rs": {"m": 4, "k": 5, "n": 70},
    "low_latency_allgather": {"shape": (5, 4)},
    "flash_decode": {"batch": 1, "heads": 2, "size": 3},
}
"""Sizes of the interpreted kernels: the first two still have two tiles per shard."""

EXPERTS = {"TOKENS": 4, "HIDDEN": 9, "LOCAL_EXPERTS": 2}
"""Those of the exchanges of experts, which share `routed`."""


def run(
    state: dict[str, Any],
    name: str,
    folder: str,
    source: str | None = None,
    late_s: float = 0.0,
    timeout_s: float = 60.0,
) -> dict[str, Any]:
    """Return the recorded accesses, the error of each result, and what a failed rank raised.

    `folder`: a new one, for the ranks to share a file. `late_s`: how much later each rank begins than the one
    before; less than 0, than the one behind.
    """
    vars(symmetric_on_rank).update(EXPERTS)
    heap = SymmetricHeap(shared_heaps(HEAP_B), dist.get_rank(), int(timeout_s * 1e9))
    module = _module(name, source)
    errors, failure = [], None
    time.sleep(late_s * heap.rank if late_s >= 0 else late_s * (heap.rank + 1 - heap.ranks))
    with traced(heap, Path(folder) / "number") as accesses:
        try:
            for result, expected in CASES[name](module, heap, **SMALL.get(name, {})):
                errors.append(error(result, expected))
        except Exception as raised:  # a mutant may fail in any way, and its pool is used again
            failure = f"{type(raised).__name__}: {raised}"
    return {"accesses": accesses, "errors": errors, "failure": failure}
