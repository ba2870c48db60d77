"""Computes bf16 matrix products through fp32 where the CPU is slow at them, with the same allocations.

For cells that ask for bytes alone. On a CPU without AVX-512, torch's bf16 products run 10 to 100 times slower
than fp32. Within `fast_bf16_products` their results are allocated as torch allocates them, and computed in
fp32 blocks outside of torch's allocator. So the allocator's events are unchanged.

The products are replaced where torch's dispatcher would call its own kernel. A dispatch mode would be
simpler, but its presence alone changes what autograd allocates.

Left as they are, with CPU time relative to fp32 as seen with torch 2.13 limited to AVX2: fused attention
(forward 1 times, forward and backward 1 to 6 times), `mv` and `dot` (1 to 2 times). `addmv` takes 10 times as
long, but no step reaches it, and each element of its matrix is used once only. Matrix products take 20 to 35.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.instruments import torch_internals
from harness.instruments.memory.allocator import memory_events, memory_profile

SIZE = 128  # rows and columns: 4.2 MFLOP per product, so that even 0.25 GFLOP/s takes only 17 ms
ROUNDS, LEAST_S = 5, 0.1
"""Products per dtype, interleaved: at least so many, and for so long. The fastest counts, so that other work
on this machine does not."""

SLOW = 5.0  # times slower than fp32; CPUs with AVX-512 stay below 2 at this size


@cache
def matmul_FLOP_per_s() -> dict[str, float]:
    """Return the matmul rate of one thread per dtype, measured once: two would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {dtype: 2 * SIZE**3 / seconds for dtype, seconds in _shortest_s().items()}
    finally:
        torch.set_num_threads(threads)


def _shortest_s() -> dict[str, float]:
    matrices = {"fp32": torch.ones(SIZE, SIZE), "bf16": torch.ones(SIZE, SIZE, dtype=torch.bfloat16)}
    best_s = dict.fromkeys(matrices, float("inf"))
    rounds, started_s = 0, time.perf_counter()
    with torch.no_grad():
        while rounds < ROUNDS or time.perf_counter() - started_s < LEAST_S:
            for dtype, matrix in matrices.items():
                start_s = time.perf_counter()
                torch.mm(matrix, matrix)
                best_s[dtype] = min(best_s[dtype], time.perf_counter() - start_s)
            rounds += 1
    return best_s


def bf16_is_slow() -> bool:
    """Return whether bf16 products run several times slower than fp32 on this CPU."""
    rates = matmul_FLOP_per_s()
    return rates["fp32"] > SLOW * rates["bf16"]


BLOCK = 1024  # rows, columns and inner size of an fp32 block: three blocks take 12 MB
FEWEST = 400
"""Below so many multiplications per matrix, torch computes a batched product by a loop of its own, which is
fast and copies no operand (ATen/native/LinearAlgebra.cpp, `bmm_out_or_baddbmm_`)."""

STAND_INS = {"mm": "product", "addmm": "sum", "bmm": "product", "baddbmm": "sum"}
"""Operation -> the method of `Bf16Products` in its place."""

WATCHED = (
    *("addmm_", "baddbmm_", "mm.out", "addmm.out", "bmm.out", "baddbmm.out"),
    *("convolution", "convolution_backward"),
)
"""Other operations that may compute bf16 products slowly; they run as they are, and are named."""


class _Blocks(threading.local):
    """Three fp32 blocks per thread: autograd may run a backward pass in a thread of its own."""

    def __init__(self) -> None:
        self.flat = [torch.from_numpy(np.zeros(BLOCK * BLOCK, np.float32)) for _ in range(3)]


class Bf16Products:
    """Stand-ins for torch's bf16 products on the CPU; calls that were `replaced`, and `slow` ones left."""

    def __init__(self) -> None:
        self.replaced: Counter[str] = Counter()
        self.slow: Counter[str] = Counter()
        self._blocks = _Blocks()

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """Return the CPU kernel of each operation: a function of (dispatch keys, arguments …)."""
        replaced = {name: self._guarded(name, getattr(self, method)) for name, method in STAND_INS.items()}
        return replaced | {name: self._guarded(name, None) for name in WATCHED}

    def _guarded(self, name: str, stand_in: Callable[..., Tensor] | None) -> Callable[..., Any]:
        """Return `stand_in` for operands that it supports, torch's own kernel for others."""
        kernel = torch_internals.cpu_kernel(f"aten::{name}")

        def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if stand_in is not None and is_replaceable(args):
                self.replaced[name] += 1
                return stand_in(*args, **kwargs)
            if any(isinstance(one, Tensor) and one.dtype is torch.bfloat16 and one.numel() for one in args):
                self.slow[name] += 1
            return kernel(keys, *args, **kwargs)

        return run

    def replaces(self, operation: Any, args: Sequence[Any]) -> bool:
        """Return whether a call of one of torch's operations is computed by a stand-in."""
        return operation.name() in {f"aten::{name}" for name in STAND_INS} and is_replaceable(args)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `left` `right`, or that of each matrix of a batch."""
        return self.sum(None, left, right, beta=0)

    def sum(
        self, added: Tensor | None, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        """Return beta `added` + alpha `left` `right`, or that of each matrix of a batch."""
        result = left.new_empty(*left.shape[:-1], right.shape[-1])
        summands = None if added is None else added.expand_as(result)
        for index in range(left.shape[0]) if left.dim() == 3 else [...]:
            summand = None if summands is None else summands[index]
            self._multiply(result[index], left[index], right[index], summand, beta, alpha)
        return result

    def _multiply(
        self, result: Tensor, left: Tensor, right: Tensor, added: Tensor | None, beta: float, alpha: float
    ) -> None:
        """Write alpha `left` `right` + beta `added` into `result`, block by block, without an allocation."""
        for rows, columns in product(_cuts(result.shape[0]), _cuts(result.shape[1])):
            block = result[rows, columns]
            total = self._blocks.flat[0][: block.numel()].view(block.shape)
            if added is not None:
                total.copy_(added[rows, columns])
            keep = beta  # of what `total` holds before the first product
            for inner in _cuts(left.shape[1]):
                left_block = self._widen(1, left[rows, inner])
                right_block = self._widen(2, right[inner, columns])
                total.addmm_(left_block, right_block, beta=keep, alpha=alpha)
                keep = 1
            block.copy_(total)

    def _widen(self, number: int, block: Tensor) -> Tensor:
        """Copy `block` into fp32 block `number`, in its own layout: a transposed copy would be slow."""
        flat = self._blocks.flat[number][: block.numel()]
        if block.stride(0) == 1 and block.stride(1) != 1:
            return flat.view(block.shape[1], block.shape[0]).t().copy_(block)
        return flat.view(block.shape).copy_(block)


def _cuts(size: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]


PLAIN = (Tensor, torch.nn.Parameter)


def is_replaceable(args: Sequence[Any]) -> bool:
    """Return whether all operands are plain bf16 CPU tensors in a layout that BLAS reads without a copy."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    plain = [one for one in tensors if type(one) in PLAIN and one.device.type == "cpu" and one.numel()]
    if len(plain) < len(tensors) or any(one.dtype is not torch.bfloat16 for one in tensors):
        return False
    left, right = tensors[-2:]
    few = left.dim() == 3 and prod(left.shape[1:]) * right.shape[-1] < FEWEST
    return not few and _is_readable(left) and _is_readable(right)


def _is_readable(matrices: Tensor) -> bool:
    """Return whether BLAS can read the last two dimensions as they are stored, by rows or by columns."""
    (rows, columns), (across, along) = matrices.shape[-2:], matrices.stride()[-2:]
    return (along == 1 and across >= max(1, columns)) or (across == 1 and along >= max(1, rows))


@contextmanager
def fast_bf16_products() -> Iterator[Bf16Products | None]:
    """Compute bf16 products in fp32 inside the block where the CPU is slow at them; else yields None."""
    replaced = bf16_is_slow() and products_take_results_alone()
    with replaced_products() if replaced else nullcontext() as products:
        yield products


@contextmanager
def replaced_products() -> Iterator[Bf16Products]:
    """Compute bf16 products on the CPU in fp32 inside the block, in all threads."""
    products = Bf16Products()
    with torch_internals.cpu_kernels(products.kernels()):
        yield products


@cache
def products_take_results_alone() -> bool:
    """Return whether torch's bf16 products allocate results alone; oneDNN's take scratch memory."""
    matrix = torch.ones(64, 64, dtype=torch.bfloat16)
    batch = matrix.expand(2, 64, 64).contiguous()
    size_B = matrix.numel() * matrix.element_size()
    with torch.no_grad(), memory_profile() as profile:
        torch.mm(matrix, matrix)
        torch.bmm(batch, batch)
    sizes_B = [size_B for name, size_B in memory_events(profile, "none") if name == "[memory]"]
    return sizes_B == [size_B, -size_B, 2 * size_B, -2 * size_B]
