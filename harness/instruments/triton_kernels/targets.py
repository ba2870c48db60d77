"""What a kernel needs of a GPU: registers, shared memory, spills, as its compiler reports; needs no GPU.

Registers are read from code objects: AMD's HSACO, NVIDIA's cubin and PTX. Triton's IR is lowered to linalg by
triton-ascend's tool, which needs no NPU and no compiler of Huawei's. triton-ascend is a package `triton` of
its own, so it lies in another environment and its tool alone is run.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.records import Unavailable

REGISTER_B = 4

NOTES = 7  # SHT_NOTE: the type of an ELF section of notes (System V ABI, chapter 4, figure 4-9)
AMD_METADATA = (b"AMDGPU\0", 32)
"""Name and type (NT_AMDGPU_METADATA) of the note with a code object's metadata, in MessagePack: LLVM's
AMDGPUUsage, "Code Object V3 and Above Note Records"."""


class KernelUsage(NamedTuple):
    """What a thread needs: `registers` of 4 B (AMD: vector registers), and spilled ones, in memory."""

    name: str
    registers: int
    spilled_registers: int


def of_hsaco(code: bytes) -> list[KernelUsage]:
    """Return the kernels of an AMD code object, from its metadata; raises `Unavailable` where it has none."""
    for name, kind, text in _elf_notes(code):
        if (name, kind) == AMD_METADATA:
            kernels: list[dict[str, Any]] = msgspec.msgpack.decode(text)["amdhsa.kernels"]
            keys = (".name", ".vgpr_count", ".vgpr_spill_count")
            return [KernelUsage(*(one[key] for key in keys)) for one in kernels]
    raise Unavailable("the AMD code object has no metadata, so it states no registers")


def of_cubin(code: bytes) -> list[KernelUsage]:
    """Return the kernels of an NVIDIA code object as cuobjdump reports them; raises `Unavailable`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = _output(_tool("cuobjdump"), "-res-usage", file.name)
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text)
    if not found:
        raise Unavailable(f"cuobjdump states no registers: {' '.join(text.split())[:200]}")
    return [
        KernelUsage(name, int(registers), (int(stack) + int(local)) // REGISTER_B)
        for name, registers, stack, local in found
    ]


def of_ptx(text: str, architecture: str) -> list[KernelUsage]:
    """Return the kernels of PTX's text, assembled for an architecture such as sm_80; raises `Unavailable`."""
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        source.write_text(text)
        _output(_tool("ptxas"), "-arch", architecture, str(source), "-o", str(code))
        return of_cubin(code.read_bytes())


def _tool(name: str) -> str:
    try:
        import triton

        return str(getattr(triton.knobs.nvidia, name).path)
    except (ImportError, RuntimeError) as error:
        raise Unavailable(f"Triton's package lacks {name}, which reads registers: {error}") from error


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise Unavailable(f"{Path(command[0]).name}: {' '.join(done.stderr.split())[:200]}")
    return done.stdout


def _elf_notes(code: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield name, type and content of each note of a 64-bit little-endian ELF file."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise Unavailable("the AMD code object is no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", code, 0x28)
    entry_B, count = struct.unpack_from("<HH", code, 0x3A)
    for entry in range(table, table + count * entry_B, entry_B):
        (kind,) = struct.unpack_from("<I", code, entry + 4)
        at, size = struct.unpack_from("<QQ", code, entry + 24)
        end = at + size if kind == NOTES else at
        while at < end:
            name_B, text_B, note = struct.unpack_from("<III", code, at)
            begin = at + 12 + _aligned(name_B)
            yield code[at + 12 : at + 12 + name_B], note, code[begin : begin + text_B]
            at = begin + _aligned(text_B)


def _aligned(size: int) -> int:
    return (size + 3) // 4 * 4


OPTIONS = {"enable_fp_fusion": True}
"""Of every kernel: multiplications and additions are fused, as in PyTorch's own; Triton 3.10's default."""

NVIDIA = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
AMD = ("gfx90a", "gfx942")
TARGETS = (*NVIDIA, *AMD)  # the targets: A100, H100 and H200, B200; MI200, MI300
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
    """What one thread (registers, see `KernelUsage`) and one program (shared memory) need on `target`."""

    target: str
    registers: int
    shared_memory_B: int
    spilled_registers: int


class CompilationFailed(Exception):
    """A kernel does not compile for a target; the text names both and the compiler's message in one line."""


def usage(compilation: Compilation, target: str) -> Usage:
    """Return what a kernel needs on one of TARGETS; raises ValueError, `Unavailable`, `CompilationFailed`."""
    compiled = _compile(compilation, target)
    found = of_cubin(compiled.asm["cubin"]) if target in NVIDIA else of_hsaco(compiled.asm["hsaco"])
    (kernel,) = (one for one in found if one.name == compiled.metadata.name)
    return Usage(target, kernel.registers, compiled.metadata.shared, kernel.spilled_registers)


def assembly(compilation: Compilation, target: str) -> str:
    """Compile for one of TARGETS and return its assembly, PTX or AMD's; raises what `usage` raises."""
    return str(_compile(compilation, target).asm["ptx" if target in NVIDIA else "amdgcn"])


def triton_ir(compilation: Compilation) -> str:
    """Return the kernel in Triton's own IR, before any GPU's; raises what `usage` raises."""
    return str(_compile(compilation, next(iter(NVIDIA))).asm["ttir"])


def _compile(compilation: Compilation, target: str) -> Any:
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is unknown; known are {', '.join(TARGETS)}")
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
        failed = f"kernel {compilation.name} does not compile for {target}"
        raise CompilationFailed(f"{failed}: {reason}") from error


def _jit_function(compilation: Compilation) -> Any:
    from triton.runtime.jit import JITFunction

    function = compilation.function
    while function is not None and not isinstance(function, JITFunction):
        function = getattr(function, "fn", None)
    if function is None:
        why = "TRITON_INTERPRET was set when it was imported"
        raise Unavailable(f"kernel {compilation.name} cannot be compiled: {why}")
    return function


TOOL, VARIABLE = "triton-adapter-opt", "TRITON_ADAPTER_OPT"

PASSES = (
    "--discrete-mask-access-conversion=compile-on-910-95=False force-simt-template=False",
    "--triton-to-annotation",
    "--triton-to-unstructure=compile-on-910-95=False force-simt-template=False",
    "--triton-to-hivm",
    "--triton-to-hfusion",
    "--triton-to-llvm",
    "--bubble-up-operation",
    "--triton-to-linalg=global-kernel=false named-ops=True enable-nd2nz-on-vector=False "
    "enable-select-analysis=True compile-on-910-95=False",
)
"""The passes that triton-ascend 3.2.0 runs (triton/backends/ascend/compiler.py, ttir_to_linalg)."""


def _tool_path() -> str | None:
    return shutil.which(os.environ.get(VARIABLE) or TOOL)


def unavailable() -> str | None:
    """Return why nothing can be lowered here; None where the tool is found."""
    if _tool_path() is not None:
        return None
    return (
        f"{TOOL} is not on the PATH and {VARIABLE} does not name it; triton-ascend, in an environment of its "
        "own, has it in triton/backends/ascend"
    )


def lowered(name: str, text: str) -> str:
    """Return a kernel's linalg from its Triton IR; raises `Unavailable` and `CompilationFailed`."""
    if (found := _tool_path()) is None:
        raise Unavailable(unavailable() or "")
    done = subprocess.run([found, "-", *PASSES], input=text, text=True, capture_output=True, timeout=120)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or [done.stderr.strip()]
        raise CompilationFailed(f"kernel {name} does not lower to linalg: {errors[0][:200]}")
    return done.stdout
