"""A frozen reference model next to the trained one, as preferences and reinforcement learning have it.

Its weights are there throughout: an engine gets a device with so much less memory, its answer so much more.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from msgspec.structs import replace

from harness.answer import Answer, Interval, Memory
from harness.question import KeyRead, Question
from harness.records import Unavailable

LEAST_MEMORY_B = 4e9
"""Of a device next to a reference model, with which an engine still answers; the trained model needs more."""

NOT_COUNTED = KeyRead(
    key="reference_weight_B",
    status="not modelled",
    means="a frozen reference model, which is not counted here",
    memory="raises",
    seconds="none",
)


class AskedWithout(NamedTuple):
    """A question without its reference model, what that has per device, and what the device lost to it."""

    question: Question
    copy_B: float = 0.0
    lost_B: float = 0.0


def without_reference(question: Question) -> AskedWithout:
    """Return what an engine is asked; layouts that are searched for, and experts' ranks, are asked without.

    ZeRO-3 and FSDP shard the reference as they do the model, and have it on the host where that is (trl,
    trainer/utils.py, prepare_deepspeed and prepare_fsdp); tensor and pipeline ranks divide both.
    """
    on_host = question.zero == 3 and any(one.startswith("parameters") for one in question.offload)
    if not question.reference_weight_B or on_host:
        return AskedWithout(question)
    try:
        of = import_module("suites.training.of_question")
        parameters = float(of.shape_of(question.config or {}).parameters)
        memory_B = question.memory_B or of.known_gpu(question.device).usable_memory_B
    except (Unavailable, ValueError):
        parameters = 0.0
    if question.search or question.ep > 1 or not parameters:
        return AskedWithout(replace(question, keys=(*question.keys, NOT_COUNTED)))
    ranks = question.tp * question.pp
    if question.zero == 3:
        ranks *= question.shard_size or max(1, (question.devices or 1) // ranks)
    copy_B = question.reference_weight_B * parameters / ranks
    left_B = max(memory_B - copy_B, min(LEAST_MEMORY_B, memory_B))
    return AskedWithout(replace(question, memory_B=left_B), copy_B, memory_B - left_B)


def with_reference(answer: Answer, asked: AskedWithout) -> Answer:
    """Return an answer whose bytes, and the device's, have the reference model."""
    if answer.memory is None or not asked.copy_B:
        return answer
    copy_B, lost_B = asked.copy_B, asked.lost_B
    layouts = tuple(
        replace(one, needed_B=one.needed_B + copy_B, room_B=one.room_B + lost_B) for one in answer.layouts
    )
    changes = tuple(
        replace(one, peak_B=None if one.peak_B is None else one.peak_B + copy_B) for one in answer.changes
    )
    return answer.with_(memory=_larger(answer.memory, copy_B, lost_B), layouts=layouts, changes=changes)


def _larger(memory: Memory, copy_B: float, lost_B: float) -> Memory:
    """Return the bytes of a rank with its copy of the reference model."""
    peaks = tuple(
        replace(
            one,
            allocated_B=one.allocated_B + copy_B,
            reserved_B=one.reserved_B + copy_B,
            by_kind_B={**one.by_kind_B, "reference": copy_B},
        )
        for one in memory.peaks
    )
    names = ("first_stage_B", "last_stage_B", "even_routing_B", "uneven_routing_B")
    known = {name: size_B for name in names if (size_B := getattr(memory, name)) is not None}
    parts_B = dict(memory.parts_B)
    if parts_B:
        parts_B["states"] = parts_B.get("states", 0.0) + copy_B
    return replace(
        memory,
        usable_B=memory.usable_B + lost_B,
        room_B=memory.room_B + lost_B,
        allocated_B=Interval(*(end + copy_B for end in memory.allocated_B)),
        reserved_B=Interval(*(end + copy_B for end in memory.reserved_B)),
        peaks=peaks,
        parts_B=parts_B,
        **{name: size_B + copy_B for name, size_B in known.items()},
    )
