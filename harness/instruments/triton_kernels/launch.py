"""Launch a Triton kernel: compiled where its tensors are on a GPU, interpreted where they are on the CPU.

Kernels are plain `@triton.jit` functions, tuned or not, so that `targets` can compile the same ones without a
GPU. Triton itself chooses between compiler and interpreter once, at import, by the environment variable
TRITON_INTERPRET; here the device of the tensors decides, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from harness.instruments.triton_kernels import compiled_on_cpu
from harness.instruments.triton_kernels.targets import OPTIONS

Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]


def launch(kernel: Any, grid: Grid, *arguments: Any, **options: Any) -> None:
    """Run `kernel` (of `@triton.jit`, or tuned by `@triton.autotune`) once per point of `grid`.

    A grid that depends on tuned values is a function of the chosen constexprs. `options` are its constexprs,
    and num_warps or num_stages where it is not tuned. The interpreter takes the first configuration of a
    tuned kernel: it checks correctness, never speed. In the context `compiled_on_cpu` it is compiled instead.
    """
    if not callable(grid) and 0 in grid:
        return
    if any(isinstance(one, Tensor) and one.is_cuda for one in arguments):
        kernel[grid](*arguments, **OPTIONS, **options)
        return
    if hasattr(kernel, "configs"):
        options = {**options, **kernel.configs[0].kwargs}
        kernel = kernel.fn
    if compiled_on_cpu.active():
        compiled_on_cpu.run(kernel, grid, arguments, options)
        return
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
