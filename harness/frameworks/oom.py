"""Out-of-memory texts of torch: what was asked for, in which place of a step, and what would change it.

Messages of torch 1.13 to 2.9 on CUDA, ROCm and XPU. Sizes are printed by c10's `format_size`, with two
digits in B, KiB, MiB or GiB. What is printed as "tried to allocate" is the segment that the allocator asks
the driver for: a request up to 1 MiB asks for 2 MiB, one below 10 MiB for 20 MiB, and a larger one for a
multiple of 2 MiB (c10/cuda/CUDACachingAllocator.cpp, `get_allocation_size`; c10/xpu prints `alloc_size`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from harness.frameworks.step_tensors import OWN_PHASE, StepTensor, of_size, step_tensors
from harness.frameworks.table import yaml_tree
from harness.instruments.transformer import TransformerShape
from harness.question import Question

KNOWN: Mapping[str, Any] = yaml_tree("oom")

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"

ASKED = re.compile(
    rf"(CUDA|HIP|XPU|NPU) out of memory\.?\s+Tried to allocate {SIZE}"
    rf"|Allocation on device \d+ would exceed allowed memory(?s:.*?)Requested\s*:\s*{SIZE}"
)
"""The second is cudaMallocAsync's, which is the request itself (c10/cuda/CUDAMallocAsyncAllocator.cpp)."""

FREE = re.compile(rf"of which {SIZE} is free|; {SIZE} free;|Free \(according to CUDA\)\s*: {SIZE}")
ALLOCATED = re.compile(
    rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated|Currently allocated\s*: {SIZE}"
)
UNALLOCATED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
RESERVED = re.compile(rf"{SIZE} reserved in total by PyTorch")
OWN = re.compile(rf"this process has {SIZE} memory in use")
OTHERS = re.compile(rf"Process \d+ has {SIZE} memory in use")
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
    rank: int | None
    free: Printed | None
    unallocated_B: float | None  # reserved by torch and not in use
    others_B: float | None  # of other processes on the device
    rounded: bool  # what is printed is a segment of the allocator's

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
    def fragmentation(self) -> str:
        """Return whether torch held enough unused memory: yes, partly (with the free memory), no, unknown."""
        if self.unallocated_B is None:
            return "unknown"
        if self.unallocated_B >= self.asked.lo_B:
            return "yes"
        free_B = self.free.B if self.free else 0.0
        return "partly" if self.unallocated_B + free_B >= self.asked.lo_B else "no"


class OomPlace(NamedTuple):
    """The place in a training step where a traceback ended."""

    phase: str = ""  # of conf/frameworks/oom.yaml, or "" where nothing shows it
    recomputed: bool = False  # within the recomputation of a layer
    operation: str = ""  # attention scores, MLP, ... or ""
    line: str = ""  # the innermost line of code that the traceback shows
    place: str = ""  # its file and line number


class Remedy(NamedTuple):
    """A change that helps, with what it costs and its technique in this project."""

    change: str
    cost: str
    technique: str = ""


class OomExplained(NamedTuple):
    """What an out-of-memory text says."""

    message: OomMessage
    where: OomPlace
    tensors: tuple[StepTensor, ...]  # of the size that was asked for, most likely first
    remedies: tuple[Remedy, ...]  # cheapest first
    missing: str  # what would say more, in one line


def read_oom(
    text: str,
    question: Question | None = None,
    shape_of: Callable[[Mapping[str, Any]], TransformerShape] | None = None,
) -> OomExplained:
    """Return what the first out-of-memory message of a text means for a set-up.

    `shape_of`: returns the shape of a Hugging Face config, or raises ValueError with why it has none.
    Raises ValueError with one line that says what was recognised where there is no such message.
    """
    messages = messages_in(text)
    if not messages:
        raise ValueError(_nothing(text))
    message = messages[0]
    text = _of_rank(text, message.rank)
    where = where_of(text[: text.find("out of memory")])
    if not where.phase:
        where = where_of(text)  # launchers print some tracebacks after the message
    found: list[StepTensor] = []
    missing = "config= is missing: with it the tensor of this size is named"
    if question is not None and question.config is None:
        named = question.model_name or "no model"
        missing = f"model= is missing: {question.format} names {named}, whose sizes are not known"
    elif question is not None and question.config is not None and shape_of is not None:
        try:
            found = of_size(*message.tensor_B, where.phase, step_tensors(question, shape_of(question.config)))
            missing = "" if found else _no_match(question)
        except ValueError as error:
            missing = str(error)
    remedies = _remedies(message, where, found[0] if found else None, question)
    return OomExplained(message, where, tuple(found), tuple(dict.fromkeys(remedies)), missing)


def messages_in(text: str) -> list[OomMessage]:
    """Return the out-of-memory messages of a text, in its order."""
    starts = list(ASKED.finditer(text))
    ends = [*(one.start() for one in starts), len(text)][1:]
    return [
        _message(text, start, " ".join(text[start.start() : end].split()))
        for start, end in zip(starts, ends, strict=True)
    ]


def _message(text: str, start: re.Match[str], body: str) -> OomMessage:
    backend, *sizes = start.groups()
    unallocated, allocated, reserved = (_first(one, body) for one in (UNALLOCATED, ALLOCATED, RESERVED))
    spare = unallocated.B if unallocated else None
    if spare is None and reserved is not None and allocated is not None:
        spare = max(0.0, reserved.B - allocated.B)
    others = [found.B for one in OTHERS.findall(body) if (found := _printed(*one)).B < UNKNOWN_B]
    return OomMessage(
        backend=backend or "CUDA",
        asked=_printed(*(one for one in sizes if one)),
        rank=_rank(text, start.start()),
        free=_first(FREE, body),
        unallocated_B=spare,
        others_B=sum(others) if _first(OWN, body) and others else None,
        rounded=backend is not None,
    )


def _first(pattern: re.Pattern[str], text: str) -> Printed | None:
    found = pattern.search(text)
    size = _printed(*(one for one in found.groups() if one)) if found else None
    return size if size and size.B < UNKNOWN_B else None


def _printed(number: str, unit: str) -> Printed:
    """Return a printed size as a range: two digits are rounded, whole bytes are exact."""
    scale = UNITS[unit]
    half = 0.0 if unit == "bytes" else 0.5 * scale * 10 ** -len(number.partition(".")[2])
    value = float(number) * scale
    return Printed(f"{number} {unit}", value - half, value + half)


def _rank(text: str, at: int) -> int | None:
    """Return the rank that the message's line names, or the nearest line before it."""
    end = text.find("\n", at)
    for line in reversed(text[: end if end >= 0 else len(text)].splitlines()[-4:]):
        if found := RANK.search(line):
            return int(next(one for one in found.groups() if one is not None))
    return None


def _of_rank(text: str, rank: int | None) -> str:
    """Return the lines of one rank where torch prints its number before each, else the text."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith(f"[rank{rank}]:")]
    return "\n".join(lines) if rank is not None and len(lines) > 1 else text


FRAME = re.compile(
    r"""File "([^"]+)", line (\d+), in (\S+)"""
    r"""(?:\n(?!\s*(?:File "|Traceback|[\w.]*(?:Error|Exception)\b))\s*([^\n]+))?"""
)
PREFIX = re.compile(r"^\s*(?:\[rank\d+\]:|\d+:|\[?[Rr]ank ?\d+\]?:|\([^)]*pid=\d+[^)]*\))\s?", re.MULTILINE)

CODE = re.compile(r"^[\s│|]*(?:❱|-+>)\s*(\d+)[\s│]+(.*?)[\s│]*$", re.MULTILINE)
"""The marked line of a frame as rich and IPython print it, with its number."""

HEAD = re.compile(r"^[\s│|]*(?:File )?(/[^\s:]+\.py)(?::(\d+))?,? in \S+", re.MULTILINE)
"""The first line of a frame as rich and IPython print it."""

SPECIAL = ("optimizer", "gather", "reduce", "loss")
"""Phases by what their frames look like; of these four, the innermost frame counts."""


def where_of(text: str) -> OomPlace:
    """Return where the traceback before an out-of-memory message ended; empty words where there is none."""
    frames = [tuple(part or "" for part in found) for found in FRAME.findall(PREFIX.sub("", text))]
    if not frames:
        return _of_code(text)
    inner = [" ".join((file, name, code)) for file, _, name, code in frames[-12:]]
    operation = next((name for line in reversed(inner) for name in _shown("operations", line)), "")
    file, number, _, code = frames[-1]
    backward = re.search(KNOWN["phases"]["backward"], "\n".join(" ".join(one) for one in frames))
    again = re.search(r"recompute|checkpoint\.py|unpack_hook", "\n".join(inner))
    place = f"{file.rsplit('/', 1)[-1]}:{number}"
    return OomPlace(_phase(inner), bool(again and backward), operation, code.strip(), place)


def _of_code(text: str) -> OomPlace:
    """Return the place by a traceback of rich or IPython, which mark a line per frame."""
    marked, heads = CODE.findall(text), HEAD.findall(text)
    if not marked:
        return OomPlace()
    place = f"{heads[-1][0].rsplit('/', 1)[-1]}:{heads[-1][1] or marked[-1][0]}" if heads else ""
    return OomPlace(_phase(text.splitlines()[-60:]), line=marked[-1][1].strip(), place=place)


def _shown(kind: str, text: str) -> list[str]:
    """Return which of the phases or operations a traceback shows."""
    return [name for name, pattern in KNOWN[kind].items() if re.search(pattern, text)]


def _phase(inner: list[str]) -> str:
    """Return the phase: by the innermost frame that shows one of the special ones, else by any frame."""
    special = (name for line in reversed(inner) for name in _shown("phases", line) if name in SPECIAL)
    others = (name for name in _shown("phases", "\n".join(inner)) if name not in SPECIAL)
    return next(special, "") or next(others, "")


def _nothing(text: str) -> str:
    found = next((line for pattern, line in KNOWN["other_texts"].items() if re.search(pattern, text)), None)
    return found or (
        "no out-of-memory message of torch is in it: expected 'CUDA out of memory. Tried to allocate …'"
    )


def _no_match(question: Question) -> str:
    if not question.seq_len:
        return "no tensor of this size; seq_len is missing, so activations and logits are not known"
    if question.zero and question.dp is None and question.devices is None:
        return "no tensor of this size; devices is missing, so shards are not known"
    return "no tensor of a step has this size: sequences of another length, or a tensor that is not listed"


def _remedies(
    message: OomMessage, where: OomPlace, tensor: StepTensor | None, question: Question | None
) -> Iterator[Remedy]:
    """Yield what would change it, cheapest first, without what the question has already."""
    of_phase = (kind for kind, phase in OWN_PHASE.items() if phase == where.phase)
    kind = tensor.kind if tensor else next(of_phase, "any")
    if not tensor and where.operation == "attention scores":
        kind = "attention"
    known = {name: Remedy(**remedy) for name, remedy in KNOWN["remedies"].items()}
    if message.fragmentation in ("yes", "partly"):
        yield known["expandable"]
    if message.others_B and message.others_B > message.asked.lo_B:
        others = f"end the other processes on this GPU, which hold {message.others_B / 2**30:.2f} GiB"
        yield Remedy(others, "nothing")
    had = _had(question) if question is not None else {}
    yield from (known[name] for name in KNOWN["by_kind"][kind].split() if not had.get(name))
    if question is None or question.zero == 3 or kind in ("logits", "attention"):
        return
    shard = known["shard"]
    if question.sharing != "megatron":
        more = shard.change.replace("ZeRO 1 to 3", "ZeRO 3") if question.zero else shard.change
        yield shard._replace(change=more)
    elif not question.zero:
        yield known["distributed_optimizer"]


def _had(question: Question) -> Mapping[str, bool]:
    """Return which remedies a question has already."""
    return {
        "fused_loss": question.fused_loss,
        "flash": question.attention != "explicit",
        "fused_adam": question.optimizer_impl == "fused",
        "selective": question.recompute != "none",
        "full": question.recompute == "full" and question.recompute_every == 1,
        "smaller": question.micro_batch_size == 1,
        "eight_bit": question.optimizer == "adamw_8bit",
        "offload": "optimizer" in question.offload,
    }
