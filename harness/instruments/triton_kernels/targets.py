"""What a kernel needs of a GPU: registers, shared memory, spills, as its compiler reports; needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.instruments.triton_kernels.code_objects import of_cubin, of_hsaco
from harness.instruments.triton_kernels.options import OPTIONS
from harness.records import Unavailable

NVIDIA = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
AMD = ("gfx90a", "gfx942")
TARGETS = (*NVIDIA, *AMD)
"""The targets: A100, H100 and H200, B200; MI200, MI300."""

COMPILE_TIME = "constexpr"


class Compilation(NamedTuple):
    """One kernel to be compiled.

    `function` is a `@triton.jit` function, tuned or not. `signature` names the type of each argument that is
    not a constexpr ("*bf16", "i32", "fp32"); `constexprs` gives the others their values. Pointers and
    integers are taken to be multiples of 16, as Triton finds them where sizes are, but for those in `odd`.
    """

    name: str
    function: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    on_amd: Mapping[str, Any] = {}  # constexprs that differ there
    odd: tuple[str, ...] = ()  # integers of any value


class Usage(NamedTuple):
    """What one thread and one program of a kernel need on `target`.

    `registers` and `spilled_registers`: see `code_objects.KernelUsage`. `shared_memory_B`: per program.
    """

    target: str
    registers: int
    shared_memory_B: int
    spilled_registers: int


class CompilationFailed(Exception):
    """A kernel does not compile for a target; the text names both and the compiler's message in one line."""


def usage(compilation: Compilation, target: str) -> Usage:
    """Compile for one of TARGETS and return what the kernel needs.

    Raises ValueError for another target, `Unavailable` where a tool is missing, `CompilationFailed`.
    """
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is unknown; known are {', '.join(TARGETS)}")
    compiled = _compile(compilation, target)
    found = of_cubin(compiled.asm["cubin"]) if target in NVIDIA else of_hsaco(compiled.asm["hsaco"])
    (kernel,) = (one for one in found if one.name == compiled.metadata.name)
    return Usage(target, kernel.registers, compiled.metadata.shared, kernel.spilled_registers)


def assembly(compilation: Compilation, target: str) -> str:
    """Compile for one of TARGETS and return its assembly, PTX or AMD's; raises what `usage` raises."""
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is unknown; known are {', '.join(TARGETS)}")
    compiled = _compile(compilation, target)
    text: str = compiled.asm["ptx" if target in NVIDIA else "amdgcn"]
    return text


def triton_ir(compilation: Compilation) -> str:
    """Return the kernel in Triton's own IR, before any GPU's; raises what `usage` raises."""
    text: str = _compile(compilation, next(iter(NVIDIA))).asm["ttir"]
    return text


def _compile(compilation: Compilation, target: str) -> Any:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise Unavailable(f"Triton cannot be imported: {error}") from error
    function = _jit_function(compilation)
    signature = {name: compilation.signature.get(name, COMPILE_TIME) for name in function.arg_names}
    missing = {name for name, kind in signature.items() if kind == COMPILE_TIME} ^ set(compilation.constexprs)
    if missing:
        raise ValueError(f"kernel {compilation.name}: arguments without type or value: {', '.join(missing)}")
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind in ("i32", "i64") and name not in compilation.odd)
    }
    constexprs = {**compilation.constexprs, **(compilation.on_amd if target in AMD else {})}
    source = ASTSource(function, signature, constexprs, aligned)
    place = GPUTarget("cuda", NVIDIA[target], 32) if target in NVIDIA else GPUTarget("hip", target, 64)
    try:
        return triton.compile(source, place, {"num_warps": compilation.num_warps, **OPTIONS})
    except Exception as error:  # a compiler raises many kinds of exceptions
        reason = " ".join(str(error).split())[:300]
        if "Cannot find" in reason:
            raise Unavailable(f"Triton's compiler for {target} lacks a tool: {reason}") from error
        raise CompilationFailed(
            f"kernel {compilation.name} does not compile for {target}: {reason}"
        ) from error


def _jit_function(compilation: Compilation) -> Any:
    """Return the function below its tuner."""
    from triton.runtime.jit import JITFunction

    function = compilation.function
    while not isinstance(function, JITFunction):
        if not hasattr(function, "fn"):
            raise Unavailable(
                f"kernel {compilation.name} cannot be compiled: TRITON_INTERPRET was set when it was imported"
            )
        function = function.fn
    return function
