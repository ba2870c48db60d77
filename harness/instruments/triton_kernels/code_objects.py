"""Registers of compiled GPU kernels, read from their code objects: AMD's HSACO, NVIDIA's cubin and PTX."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.records import Unavailable

REGISTER_B = 4

NOTES = 7
"""SHT_NOTE: the type of an ELF section of notes (System V ABI, chapter 4, figure 4-9)."""

AMD_METADATA = (b"AMDGPU\0", 32)
"""Name and type (NT_AMDGPU_METADATA) of the note with a code object's metadata, in MessagePack: LLVM's
AMDGPUUsage, "Code Object V3 and Above Note Records"."""


class KernelUsage(NamedTuple):
    """What one thread of a kernel needs.

    `registers`: 4 B each (AMD: vector registers). `spilled_registers`: those that did not fit and are in
    memory (NVIDIA: its stack).
    """

    name: str
    registers: int
    spilled_registers: int


def of_hsaco(code: bytes) -> list[KernelUsage]:
    """Return the kernels of an AMD code object, from its metadata; raises `Unavailable` where it has none."""
    for name, kind, text in _elf_notes(code):
        if (name, kind) == AMD_METADATA:
            kernels: list[dict[str, Any]] = msgspec.msgpack.decode(text)["amdhsa.kernels"]
            return [
                KernelUsage(one[".name"], one[".vgpr_count"], one[".vgpr_spill_count"]) for one in kernels
            ]
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
    """Return the path of one of NVIDIA's tools in Triton's package."""
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
