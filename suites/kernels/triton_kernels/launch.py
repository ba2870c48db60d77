"""Launch a Triton kernel: compiled where its tensors are on a GPU, interpreted where they are on the CPU.

Kernels are plain `@triton.jit` functions, tuned or not, so that `targets` can compile the same ones without a
GPU. Triton itself chooses between compiler and interpreter once, at import, by the environment variable
TRITON_INTERPRET; here the device of the tensors decides, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

WARPS = [triton.Config({}, num_warps=warps) for warps in (4, 8, 16)]
"""Configurations for `@triton.autotune(WARPS, key=[...])` where only the number of warps is tuned."""

STAGED_WARPS = [
    triton.Config({"STAGES": stages}, num_warps=warps) for stages in (1, 2) for warps in (4, 8, 16)
]
"""The same for kernels that loop over rows: also whether a row is fetched while another is processed."""

TILE_ELEMENTS = 4096
"""Elements that a program takes at once where possible: 16 per thread at 8 warps, so several wide loads."""

WIDEST_BLOCK = 16384
"""Most columns of one block, 32 per thread at 16 warps; wider rows are looped over in tiles."""

WIDEST_WITH_SUMS = 8192
"""The same for the backward pass of a norm, which also keeps a row of sums in registers."""

TYPICAL_COLUMNS = 4096
"""Columns for which kernels are compiled where no workload names them: the hidden size of Llama's 7B
model."""

OPTIONS = {"enable_fp_fusion": True}
"""Multiplications and additions are fused, as in PyTorch's own kernels; Triton's default changes at 3.10."""

PROGRAMS_PER_CORE = 4
"""Programs per core of kernels that loop over rows, so that each core has several programs' loads in
flight."""


Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]


class Tile(NamedTuple):
    """How a program covers rows: `rows` and `block` columns at once; `whole` if those are all columns."""

    rows: int
    block: int
    whole: bool


def tile(columns: int, widest: int = WIDEST_BLOCK) -> Tile:
    """Return the tile for rows of `columns` elements, powers of two; several rows where they are short."""
    block = triton.next_power_of_2(columns)
    if block > widest:
        return Tile(1, min(widest, TILE_ELEMENTS), False)
    return Tile(max(1, TILE_ELEMENTS // block), block, True)


def cover(tensor: Tensor) -> int:
    """Return how many programs of TILE_ELEMENTS elements each cover a contiguous tensor."""
    return -(-tensor.numel() // TILE_ELEMENTS)


def programs(tiles: int, tensor: Tensor, per_core: int = PROGRAMS_PER_CORE) -> int:
    """Return how many programs share `tiles` of rows where each keeps partial sums: enough for the device.

    On the CPU two, so that sums over programs are tested there too.
    """
    if not tensor.is_cuda:
        return min(tiles, 2)
    cores = torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return min(tiles, per_core * cores)


def launch(kernel: Any, grid: Grid, *arguments: Any, **options: Any) -> None:
    """Run `kernel` (of `@triton.jit`, or tuned by `@triton.autotune`) once per point of `grid`.

    A grid that depends on tuned values is a function of the chosen constexprs. `options` are its constexprs,
    and num_warps or num_stages where it is not tuned. The interpreter takes the first configuration of a
    tuned kernel: it checks correctness, never speed.
    """
    if not callable(grid) and 0 in grid:
        return
    if any(isinstance(one, Tensor) and one.is_cuda for one in arguments):
        kernel[grid](*arguments, **OPTIONS, **options)
        return
    if hasattr(kernel, "configs"):
        options = {**options, **kernel.configs[0].kwargs}
        kernel = kernel.fn
    quiet = numpy.errstate(all="ignore")  # infinities are ordinary on a GPU
    with _callable_device_functions(), _products_of_values(), _rounding_to_nearest(), quiet:
        _interpreted(kernel)[grid](*arguments, **options)


def _interpreted(function: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function.fn)


@contextmanager
def _callable_device_functions() -> Iterator[None]:
    """Let interpreted kernels call compiled functions: their helpers, tl.sum, tl.sigmoid and the like.

    These refuse a call from Python. The interpreter patches triton.language while it runs a kernel; what a
    called function patches in addition is restored here, because a later compilation must not see it.
    """
    refuse = JITFunction.__call__
    JITFunction.__call__ = _call_interpreted
    try:
        yield
    finally:
        JITFunction.__call__ = refuse


def _call_interpreted(function: Any, *arguments: Any, **options: Any) -> Any:
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(function.fn)
    try:
        return _interpreted(function).rewrite()(*arguments, **options)
    finally:
        scope.restore()


@contextmanager
def _products_of_values() -> Iterator[None]:
    """Let the interpreter's tl.dot multiply bf16 numbers; Triton 3.9 multiplies their bits as integers."""
    from triton.runtime.interpreter import InterpreterBuilder

    given = InterpreterBuilder.create_dot

    def widened(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            builder.cast_impl(one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one for one in (a, b)
        )
        return given(builder, a, b, *rest)

    InterpreterBuilder.create_dot = widened
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = given


@contextmanager
def _rounding_to_nearest() -> Iterator[None]:
    """Let the interpreter round fp32 to bf16 as GPUs do, to nearest even; Triton 3.9 truncates."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    given = InterpreterBuilder.cast_impl

    def rounded(builder: Any, source: Any, kind: Any) -> Any:
        if source.dtype.scalar != tl.float32 or kind.scalar != tl.bfloat16:
            return given(builder, source, kind)
        values = torch.from_numpy(numpy.array(source.data, dtype=numpy.float32))
        return TensorHandle(values.bfloat16().view(torch.int16).numpy().view(numpy.uint16), kind.scalar)

    InterpreterBuilder.cast_impl = rounded
    try:
        yield
    finally:
        InterpreterBuilder.cast_impl = given
