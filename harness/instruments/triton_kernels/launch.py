"""Launch a Triton kernel: compiled where its tensors are on a GPU, interpreted where they are on the CPU.

Kernels are plain `@triton.jit` functions, tuned or not, so that `targets` can compile the same ones without a
GPU. Triton itself chooses between compiler and interpreter once, at import, by the environment variable
TRITON_INTERPRET; here the device of the tensors decides, call by call.

`compiled_on_cpu()` is a context in which a CPU runs them at compiled speed in place of the interpreter:
Triton's IR to linalg, linalg to LLVM, by MLIR's passes and LLVM of torch-mlir's package. linalg's tensors
become buffers and loops, and LLVM's loops are vectorized by its own optimizer. A second function calls the
kernel for a range of programs of its grid, so that a thread enters the machine code once.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from harness.instruments.triton_kernels import targets
from harness.instruments.triton_kernels.targets import OPTIONS, Compilation, CompilationFailed, triton_ir
from harness.records import Unavailable

TO_BUFFERS = (
    "builtin.module(func.func(convert-elementwise-to-linalg),canonicalize,cse,func.func(linalg-fuse-elementwise-ops),"
    "one-shot-bufferize{allow-unknown-ops=1 allow-return-allocs-from-loops=1},canonicalize,cse)"
)
TO_LLVM = (
    "builtin.module(func.func(convert-linalg-to-loops),buffer-deallocation-pipeline,expand-strided-metadata,"
    "lower-affine,convert-scf-to-cf,convert-bufferization-to-memref,math-uplift-to-fma,convert-math-to-llvm,"
    "convert-math-to-libm,finalize-memref-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,"
    "reconcile-unrealized-casts)"
)
UNUSED = 2  # arguments that the tool puts before a kernel's own: a lock and a workspace
GRID = 6  # arguments that it puts behind: the programs along three axes, and the own place


class MachineCode:
    """A kernel's machine code."""

    def __init__(self, name: str, linalg: str) -> None:
        """Compile; raises `Unavailable` without torch-mlir, `CompilationFailed` with its message."""
        try:
            from torch_mlir import ir
            from torch_mlir.execution_engine import ExecutionEngine
            from torch_mlir.passmanager import PassManager
        except ImportError as error:
            raise Unavailable(
                f"torch_mlir cannot be imported; the extra `portability` brings it: {error}"
            ) from error
        context = ir.Context()
        context.allow_unregistered_dialects = True
        try:
            with context, ir.Location.unknown():
                module = ir.Module.parse(_over_a_range(_replaced(linalg, UPGRADES)))
                PassManager.parse(TO_BUFFERS).run(module.operation)
                module = ir.Module.parse(_replaced(str(module), LINALG_COPIES))
                PassManager.parse(TO_LLVM).run(module.operation)
                self._engine = ExecutionEngine(module, opt_level=3)
                self._entry: Any = self._engine.lookup("over_a_range")
        except Exception as error:  # MLIR's Python package raises kinds of its own
            raise CompilationFailed(
                f"kernel {name} does not compile for the CPU: {_first_error(error)}"
            ) from error

    def run(
        self, arguments: Sequence[Tensor | int | float], grid: tuple[int, int, int], first: int, last: int
    ) -> None:
        """Run the programs with numbers from `first` to before `last`, counted along the first axis first."""
        nothing = [_descriptor(0) for _ in range(UNUSED)]
        values: list[Any] = [*nothing, *map(_argument, arguments), *map(ctypes.c_int32, (*grid, first, last))]
        # A buffer's descriptor is passed by a pointer to it, each argument by a pointer to what is passed.
        passed = [ctypes.pointer(one) if isinstance(one, _Buffer) else one for one in values]
        addresses = [ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in passed]
        self._entry((ctypes.c_void_p * len(addresses))(*addresses))


class _Buffer(ctypes.Structure):
    """MLIR's descriptor of a buffer of one dimension and any length."""

    _fields_ = (
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64 * 1),
        ("stride", ctypes.c_int64 * 1),
    )


def _descriptor(address: int, elements: int = 0) -> _Buffer:
    return _Buffer(address, address, 0, (ctypes.c_int64 * 1)(elements), (ctypes.c_int64 * 1)(1))


def _argument(value: Tensor | int | float) -> Any:
    if isinstance(value, Tensor):
        return _descriptor(value.data_ptr(), value.untyped_storage().nbytes() // value.element_size())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int32(value)


UPGRADES = {
    r"^#loc.*\n": "",
    r" loc\((?:[^()]|\([^()]*\))*\)$": "",
    r"\{hivm\.[a-z_]+\}": "",
    r" \{tt\.[^}]*\}": "",
    r"(bufferization\.to_tensor .*? : )memref<([^>]*)>$": r"\1memref<\2> to tensor<\2>",
}
"""Make the tool's text one in the syntax of torch-mlir's MLIR, without places and others' attributes."""

LINALG_COPIES = {
    r"memref\.copy (%\w+), (%\w+) : (memref<.*>) to (memref<.*>)": r"linalg.copy ins(\1 : \3) outs(\2 : \4)"
}
"""linalg's copies, since MLIR's own call a library that the package lacks."""


def _replaced(text: str, patterns: Mapping[str, str]) -> str:
    for pattern, by in patterns.items():
        text = re.sub(pattern, by, text, flags=re.MULTILINE)
    return text


def _over_a_range(text: str) -> str:
    """Return the module with a function `over_a_range`, whose last two arguments are a range of programs."""
    found = re.search(r"func\.func @(\w+)\((.*)\) attributes", text)
    if found is None:
        raise CompilationFailed("the tool's text has no function")
    types = re.findall(r"%\w+: ([^,]*(?:<[^>]*>)?)", found[2])
    own = [f"%a{i}: {kind}" for i, kind in enumerate(types[:-GRID])]
    names = ", ".join(f"%a{i}" for i in range(len(own)))
    body = f"""
  func.func @over_a_range({", ".join(own)}, %gx: i32, %gy: i32, %gz: i32, %first: i32, %last: i32)
      attributes {{llvm.emit_c_interface}} {{
    %one = arith.constant 1 : i32
    scf.for %i = %first to %last step %one : i32 {{
      %x = arith.remsi %i, %gx : i32
      %row = arith.divsi %i, %gx : i32
      %y = arith.remsi %row, %gy : i32
      %z = arith.divsi %row, %gy : i32
      func.call @{found[1]}({names}, %gx, %gy, %gz, %x, %y, %z) : ({", ".join(types)}) -> ()
    }}
    return
  }}
"""
    end = text.rstrip().rfind("}")
    return text[:end] + body + "}\n"


def _first_error(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line] or [str(error)]
    return lines[0][:200]


TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
}

_active = False


@contextmanager
def compiled_on_cpu() -> Iterator[None]:
    """Let `launch` compile kernels on CPU tensors inside the block."""
    global _active
    before, _active = _active, True
    try:
        yield
    finally:
        _active = before


def run_compiled(function: Any, grid: Any, arguments: Sequence[Any], constexprs: Mapping[str, Any]) -> None:
    """Run a `@triton.jit` function per point of `grid`, by torch's threads; raises TypeError, `lowered`'s."""
    names = function.arg_names
    constants = {names[i] for i in function.constexprs}
    given = {**dict(zip(names, arguments, strict=False)), **constexprs}
    fixed = tuple((name, value) for name, value in given.items() if name in constants)
    own = {name: given[name] for name in names if name in given and name not in constants}
    program = _program(function, tuple((name, _kind_of(value)) for name, value in own.items()), fixed)
    shape = grid(given) if callable(grid) else grid
    x, y, z = (*shape, 1, 1)[:3]
    total, threads = x * y * z, torch.get_num_threads()
    ordered, share = list(own.values()), -(-total // threads)
    ranges = [(begin, min(begin + share, total)) for begin in range(0, total, share)]
    if len(ranges) == 1:
        program.run(ordered, (x, y, z), *ranges[0])
        return
    running = [_pool(threads).submit(program.run, ordered, (x, y, z), *one) for one in ranges]
    for one in running:
        one.result()


def _kind_of(value: Any) -> str:
    """Return an argument's type as Triton names it; raises TypeError for one that has none here."""
    if isinstance(value, Tensor) and value.dtype in TYPES:
        return TYPES[value.dtype]
    if isinstance(value, int) and not isinstance(value, bool):
        return "i32"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"a compiled kernel takes tensors, integers and floats, not {type(value).__name__}")


_pool = lru_cache(maxsize=1)(ThreadPoolExecutor)  # of as many threads


@lru_cache(maxsize=256)
def _program(
    function: Any, signature: tuple[tuple[str, str], ...], constexprs: tuple[tuple[str, Any], ...]
) -> MachineCode:
    """Return the machine code for these types and constants. Integers may have any value."""
    integers = tuple(name for name, kind in signature if kind == "i32")
    name = function.fn.__name__
    compilation = Compilation(name, function, dict(signature), dict(constexprs), odd=integers)
    return MachineCode(name, targets.lowered(name, triton_ir(compilation)))


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
    if _active:
        run_compiled(kernel, grid, arguments, options)
        return
    quiet = numpy.errstate(all="ignore")  # infinities are ordinary on a GPU
    callable_functions = patch.object(JITFunction, "__call__", _call_interpreted)
    with callable_functions, _products_of_values(), _rounding_to_nearest(), quiet:
        _interpreted(kernel)[grid](*arguments, **options)


def _interpreted(function: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function.fn)


def _call_interpreted(function: Any, *arguments: Any, **options: Any) -> Any:
    """Let interpreted kernels call compiled functions: their helpers, tl.sum, tl.sigmoid and the like.

    These refuse a call from Python. The interpreter patches triton.language while it runs a kernel; what a
    called function patches in addition is restored here, because a later compilation must not see it.
    """
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(function.fn)
    try:
        return _interpreted(function).rewrite()(*arguments, **options)
    finally:
        scope.restore()


def _products_of_values() -> AbstractContextManager[Any]:
    """Let the interpreter's tl.dot multiply bf16 numbers; Triton 3.9 multiplies their bits as integers."""
    from triton.runtime.interpreter import InterpreterBuilder

    given = InterpreterBuilder.create_dot

    def widened(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            builder.cast_impl(one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one for one in (a, b)
        )
        return given(builder, a, b, *rest)

    return patch.object(InterpreterBuilder, "create_dot", widened)


def _rounding_to_nearest() -> AbstractContextManager[Any]:
    """Let the interpreter round fp32 to bf16 as GPUs do, to nearest even; Triton 3.9 truncates."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    given = InterpreterBuilder.cast_impl

    def rounded(builder: Any, source: Any, kind: Any) -> Any:
        if source.dtype.scalar != tl.float32 or kind.scalar != tl.bfloat16:
            return given(builder, source, kind)
        values = torch.from_numpy(numpy.array(source.data, dtype=numpy.float32))
        return TensorHandle(values.bfloat16().view(torch.int16).numpy().view(numpy.uint16), kind.scalar)

    return patch.object(InterpreterBuilder, "cast_impl", rounded)
