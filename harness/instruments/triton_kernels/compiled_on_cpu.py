"""Run Triton kernels at compiled speed on a CPU: Triton's IR to linalg, linalg to LLVM, both from packages.

`compiled_on_cpu()` is a context in which `launch` uses this in place of the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from harness.instruments.triton_kernels import ascend
from harness.instruments.triton_kernels.linalg_on_cpu import MachineCode
from harness.instruments.triton_kernels.targets import Compilation, triton_ir

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


def active() -> bool:
    """Return whether kernels on CPU tensors are compiled."""
    return _active


@contextmanager
def compiled_on_cpu() -> Iterator[None]:
    """Let `launch` compile kernels on CPU tensors inside the block."""
    global _active
    before, _active = _active, True
    try:
        yield
    finally:
        _active = before


def run(function: Any, grid: Any, arguments: Sequence[Any], constexprs: Mapping[str, Any]) -> None:
    """Run a `@triton.jit` function once per point of `grid`, by as many threads as torch has.

    Raises what `ascend.lowered` and `MachineCode` raise, and TypeError for an argument of another kind.
    """
    names = function.arg_names
    constants = {names[i] for i in function.constexprs}
    given = {**dict(zip(names, arguments, strict=False)), **constexprs}
    fixed = {name: value for name, value in given.items() if name in constants}
    own = {name: value for name, value in given.items() if name not in constants}
    signature = {name: kind_of(value) for name, value in own.items()}
    program = _program(function, tuple(signature.items()), tuple(fixed.items()))
    shape = grid(given) if callable(grid) else grid
    x, y, z = (*shape, 1, 1)[:3]
    total, threads = x * y * z, torch.get_num_threads()
    ordered = [own[name] for name in names if name in own]
    share = -(-total // threads)
    ranges = [(begin, min(begin + share, total)) for begin in range(0, total, share)]
    if len(ranges) == 1:
        program.run(ordered, (x, y, z), *ranges[0])
        return
    running = [_pool(threads).submit(program.run, ordered, (x, y, z), *one) for one in ranges]
    for one in running:
        one.result()


def kind_of(value: Any) -> str:
    """Return an argument's type as Triton names it; raises TypeError for one that has none here."""
    if isinstance(value, Tensor) and value.dtype in TYPES:
        return TYPES[value.dtype]
    if isinstance(value, int) and not isinstance(value, bool):
        return "i32"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"a compiled kernel takes tensors, integers and floats, not {type(value).__name__}")


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


@lru_cache(maxsize=256)
def _program(
    function: Any, signature: tuple[tuple[str, str], ...], constexprs: tuple[tuple[str, Any], ...]
) -> MachineCode:
    """Return the machine code for these types and constants. Integers may have any value."""
    integers = tuple(name for name, kind in signature if kind == "i32")
    name = function.fn.__name__
    compilation = Compilation(name, function, dict(signature), dict(constexprs), odd=integers)
    return MachineCode(name, ascend.lowered(name, triton_ir(compilation)))
