"""What torch's out-of-memory messages say, of torch 1.13 to 2.9 on CUDA, ROCm and XPU.

Sizes are printed by c10's `format_size`, with two digits in B, KiB, MiB or GiB. What is printed as "tried to
allocate" is the segment that the allocator asks the driver for: a request up to 1 MiB asks for 2 MiB, one
below 10 MiB for 20 MiB, and a larger one for a multiple of 2 MiB (c10/cuda/CUDACachingAllocator.cpp,
`get_allocation_size`; c10/xpu prints the same `alloc_size`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"

ASKED = re.compile(rf"(CUDA|HIP|XPU|NPU) out of memory\.?\s+Tried to allocate {SIZE}")
ASYNC = re.compile(
    rf"Allocation on device \d+ would exceed allowed memory.*?Requested\s*:\s*{SIZE}", re.DOTALL
)
"""What the backend cudaMallocAsync prints (c10/cuda/CUDAMallocAsyncAllocator.cpp): the request itself."""

GPU = re.compile(r"GPU (\d+)|NPU (\d+)|on device (\d+)")
TOTAL = re.compile(rf"total capac?i?ty of {SIZE}|{SIZE} total capacity|Device limit\s*: {SIZE}")
FREE = re.compile(rf"of which {SIZE} is free|; {SIZE} free;|Free \(according to CUDA\)\s*: {SIZE}")
ALLOCATED = re.compile(
    rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated|Currently allocated\s*: {SIZE}"
)
UNALLOCATED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
RESERVED = re.compile(rf"{SIZE} reserved in total by PyTorch")
OWN = re.compile(rf"this process has {SIZE} memory in use")
OTHERS = re.compile(rf"Process \d+ has {SIZE} memory in use")
PRIVATE = re.compile(rf"with {SIZE} allocated in private pools")
ALLOWED = re.compile(rf"{SIZE} allowed")
RANK = re.compile(r"\[rank(\d+)\]:|^\s*\[?[Rr]ank[ :=]?(\d+)\]?:?|^(\d+): |\brank=(\d+)", re.MULTILINE)

UNKNOWN_B = 2.0**50
"""No device has as much: drivers that do not know a process's memory give 2^64 - 1 (WSL), printed in GiB."""

SEGMENT_B = 2 * 2**20
LARGE_B = 20 * 2**20


class Printed(NamedTuple):
    """A printed size: the bytes that print so, from `lo` to `hi`."""

    text: str
    lo_B: float
    hi_B: float

    @property
    def B(self) -> float:
        """Return the middle."""
        return (self.lo_B + self.hi_B) / 2


class OomMessage(NamedTuple):
    """One out-of-memory message; what it does not say is None."""

    backend: str  # CUDA, HIP, XPU, NPU
    asked: Printed
    gpu: int | None
    rank: int | None
    total: Printed | None
    free: Printed | None
    allocated: Printed | None
    unallocated_B: float | None  # reserved by torch and not in use
    process_B: float | None  # of this process, torch's and other memory
    others_B: float | None  # of other processes on the device
    private_B: float | None  # of CUDA graphs' pools
    messages: int  # in the text
    rounded: bool = True  # what is printed is a segment of the allocator's

    @property
    def tensor_B(self) -> tuple[float, float]:
        """Return the least and the most bytes of the tensor that was asked for."""
        if not self.rounded:
            return self.asked.lo_B, self.asked.hi_B
        if self.asked.lo_B <= SEGMENT_B <= self.asked.hi_B:
            return 1.0, 2.0**20
        if self.asked.lo_B <= LARGE_B <= self.asked.hi_B:
            return 2.0**20, float(LARGE_B)  # below 10 MiB, or from 18 to 20
        return max(1.0, self.asked.lo_B - SEGMENT_B), self.asked.hi_B

    @property
    def outside_B(self) -> float | None:
        """Return what this process has outside of torch's allocator: context, NCCL, libraries."""
        if self.process_B is None or self.allocated is None or self.unallocated_B is None:
            return None
        return max(0.0, self.process_B - self.allocated.B - self.unallocated_B)


def printed(number: str, unit: str) -> Printed:
    """Return a printed size as a range: two digits are rounded, whole bytes are exact."""
    scale = UNITS[unit]
    half = 0.0 if unit == "bytes" else 0.5 * scale * 10 ** -len(number.partition(".")[2])
    value = float(number) * scale
    return Printed(f"{number} {unit}", value - half, value + half)


def _first(pattern: re.Pattern[str], text: str) -> Printed | None:
    found = pattern.search(text)
    if found is None:
        return None
    groups = [one for one in found.groups() if one is not None]
    size = printed(groups[0], groups[1])
    return size if size.B < UNKNOWN_B else None


def messages_in(text: str) -> list[OomMessage]:
    """Return the out-of-memory messages of a text, in its order."""
    starts = sorted((*ASKED.finditer(text), *ASYNC.finditer(text)), key=lambda one: one.start())
    ends = [*(one.start() for one in starts[1:]), len(text)][: len(starts)]
    return [
        _message(text, start, " ".join(text[start.start() : end].split()), len(starts))
        for start, end in zip(starts, ends, strict=True)
    ]


def _message(text: str, start: re.Match[str], body: str, count: int) -> OomMessage:
    gpu = GPU.search(body)
    allocated, reserved = _first(ALLOCATED, body), _first(RESERVED, body)
    unallocated = _first(UNALLOCATED, body)
    spare = unallocated.B if unallocated else None
    if spare is None and reserved is not None and allocated is not None:
        spare = max(0.0, reserved.B - allocated.B)
    own = _first(OWN, body)
    others = [found.B for one in OTHERS.findall(body) if (found := printed(*one)).B < UNKNOWN_B]
    backend, number, unit = start.groups() if start.re is ASKED else ("CUDA", *start.groups())
    process_B = own.B if own else max(others) if len(others) == 1 else None
    private = _first(PRIVATE, body)
    return OomMessage(
        backend=backend,
        asked=printed(number, unit),
        gpu=int(next(one for one in gpu.groups() if one is not None)) if gpu else None,
        rank=_rank(text, start.start()),
        total=_first(TOTAL, body),
        free=_first(FREE, body),
        allocated=allocated,
        unallocated_B=spare,
        process_B=process_B,
        others_B=sum(others) if own and others else None,
        private_B=private.B if private else None,
        messages=count,
        rounded=start.re is ASKED,
    )


def _rank(text: str, at: int) -> int | None:
    """Return the rank that the message's line names, or the nearest line before it."""
    end = text.find("\n", at)
    lines = text[: end if end >= 0 else len(text)].splitlines()[-4:]
    for line in reversed(lines):
        found = RANK.search(line)
        if found:
            return int(next(one for one in found.groups() if one is not None))
    return None
