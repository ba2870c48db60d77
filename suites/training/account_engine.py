"""The engine of bytes by closed formulas: which layouts of a training step fit its devices.

`answer` takes any layout of data, tensor, pipeline, context and expert parallelism, or searches all of them,
in this process and with numpy alone. Nothing is allocated or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from harness.answer import Answer, FitVerdict, HostStates, Interval, Memory, RankedLayout, TriedChange
from harness.question import Question
from harness.records import Unavailable
from suites.training.layouts.account import LOSS_CHUNKS, peak_of_rank, worst_peak
from suites.training.layouts.dispatch import deep_ep_B
from suites.training.layouts.layout import DEFAULT_MODULES, Layouts
from suites.training.layouts.room import CUDA_CONTEXT_B, outside_allocator_B
from suites.training.layouts.search import (
    Fits,
    LayoutSubject,
    candidates,
    dominated,
    fits,
    largest_micro_batch,
    title,
    with_micro_batch,
)
from suites.training.layouts.states import all_layers_of, host_B
from suites.training.of_question import changed, left_out, subject_of

EVEN, UNEVEN = 1.0, 1.5
"""Of a mixture of experts: tokens of the rank with the busiest experts over the mean, as a range."""

PARTS = ("states", "activations", "logits", "communication", "workspaces")
"""Parts of a peak, as `LayoutPeak` has them."""


def answer(question: Question) -> Answer:
    """Return the memory of a question's layout, or all layouts that fit; raises `Unavailable` in one line.

    Intervals of bytes are points: `allocated_B` the peak of live tensors, `reserved_B` that with the
    allocator's fragmentation, which decides whether a layout fits.
    """
    return answer_of(subject_of(question))


def answer_of(subject: LayoutSubject) -> Answer:
    """Return the answer about a question that was checked."""
    answered = Answer(
        verdict="does not fit",
        engine="account",
        parameters=subject.shape.parameters,
        conditions=conditions(subject),
        left_out=left_out(subject.question),
    )
    if subject.question.search:
        return searched(subject, answered)
    of = ranked_layout(subject, subject.layout)
    memory = memory_of(subject, subject.layout)
    changes_ = tuple(changes(subject))
    return answered.with_(verdict=verdict(of), memory=memory, layouts=(of,), changes=changes_)


def verdict(of: RankedLayout) -> FitVerdict:
    """Return whether a layout fits, as a verdict."""
    return "fits" if of.fits else "does not fit"


def conditions(subject: LayoutSubject) -> dict[str, str]:
    """Return what the answer rests on."""
    training = subject.training
    return {
        "program": training.program,
        "precision": training.precision,
        "optimizer": training.optimizer,
        "layout": "searched" if subject.question.search else described(subject),
    }


def described(subject: LayoutSubject) -> str:
    """Return the layout in words, with the modules that are recomputed and another dispatcher."""
    words, training = title(subject.layout), subject.training
    if training.recompute_modules != DEFAULT_MODULES and subject.question.recompute == "selective":
        words += f" of {' and '.join(training.recompute_modules)}"
    if training.dispatcher != "alltoall":
        words += f", tokens sent by {training.dispatcher}"
    return words


def ranked_layout(
    subject: LayoutSubject, layouts: Layouts, index: int = 0, of: Fits | None = None
) -> RankedLayout:
    """Return one of the layouts with its memory; `of`: what `search.fits` has for all of them."""
    of = of or fits(subject, layouts)
    return RankedLayout(
        title=title(layouts, index),
        parts=layouts.row(index),
        needed_B=float(of.needed[index]),
        room_B=float(of.room[index]),
        fits=bool(of.fits[index]),
        retries=bool(of.retries[index]),
    )


def memory_of(subject: LayoutSubject, layout: Layouts) -> Memory:
    """Return the bytes of the rank that needs the most, of the first and last stage, and of the host."""
    shape, training, architecture = subject.shape, subject.training, subject.cluster.architecture
    worst = worst_peak(shape, layout, training, architecture)
    of = fits(subject, layout)
    ends = [
        peak_of_rank(shape, layout, training, np.array([rank]), architecture)
        for rank in (0, int(layout.pp[0]) - 1)
    ]
    bounded = (subject.question.capacity_factor or UNEVEN) < UNEVEN
    decided = not shape.num_experts or subject.question.imbalance is not None or bounded
    even_B, uneven_B = (
        None
        if decided
        else float(worst_peak(shape, layout, replace(training, imbalance=each), architecture).total_B[0])
        for each in (EVEN, UNEVEN)
    )
    largest = largest_micro_batch(subject, layout)
    return Memory(
        usable_B=subject.cluster.usable_B,
        room_B=float(of.room[0]),
        outside_B=dict(outside_B(subject, layout)),
        allocated_B=point(float(worst.total_B[0])),
        reserved_B=point(float(of.needed[0])),
        parts_B={name: float(getattr(worst, name)[0]) for name in PARTS},
        largest_micro_batch=int(largest[0]),
        stage=int(worst.stage[0]),
        first_stage_B=float(ends[0].total_B[0]),
        last_stage_B=float(ends[1].total_B[0]),
        even_routing_B=even_B,
        uneven_routing_B=uneven_B,
        host=host_memory(subject, layout),
    )


def outside_B(subject: LayoutSubject, layout: Layouts) -> Iterator[tuple[str, float]]:
    """Yield the bytes that are no tensors' of torch, by what has them."""
    yield "CUDA context", float(CUDA_CONTEXT_B)
    parts = {
        "NCCL": float(outside_allocator_B(layout)[0]) - CUDA_CONTEXT_B,
        "DeepEP": float(np.max(deep_ep_B(subject.shape, layout, subject.training))),
    }
    yield from ((name, size_B) for name, size_B in parts.items() if size_B)


def point(value: float) -> Interval:
    """Return a prediction without its error."""
    return Interval(value, value, value)


def host_memory(subject: LayoutSubject, layout: Layouts) -> HostStates | None:
    """Return what one rank keeps on its host; None where no states are offloaded."""
    rank = np.array([0])
    layers = all_layers_of(subject.shape, layout, subject.training, rank)
    host = host_B(subject.shape, layout, subject.training, layers, rank)
    if not host.asked[0]:
        return None
    return HostStates(
        rank_B=float(host.asked[0]), pinned_B=float(host.pinned[0]), reserved_B=float(host.reserved[0])
    )


def searched(subject: LayoutSubject, answered: Answer) -> Answer:
    """Return each layout that fits, with its largest micro-batch and what that needs.

    Layouts that recompute or shard more than one that fits without are left out; those that recompute less
    come first, then those with the larger margin.
    """
    plain = candidates(subject)
    if not len(plain.tp):
        return answered.with_(layouts_tried=0)
    largest = largest_micro_batch(subject, plain)
    best = with_micro_batch(plain, np.maximum(largest, 1), subject.batch)
    of, alone = fits(subject, best), fits(subject, plain)
    margin = 1 - alone.needed / alone.room
    chosen = np.flatnonzero((largest > 0) & ~dominated(plain, largest))
    order = sorted(chosen, key=lambda index: (int(plain.recompute[index]), -float(margin[index])))
    layouts = tuple(
        msgspec.structs.replace(
            ranked_layout(subject, best, int(index), of),
            margin=float(margin[index]),
            largest_micro_batch=int(largest[index]),
        )
        for index in order
    )
    answered = answered.with_(
        layouts_tried=len(plain.tp), layouts_that_fit=int((largest > 0).sum()), layouts=layouts
    )
    if not layouts:
        return answered
    return answered.with_(verdict="fits", memory=memory_of(subject, best.only(np.array(order[:1]))))


def possible(subject: LayoutSubject) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield changes of a question's fields with their titles, in order of what they usually cost.

    Memory that is free comes first, then time: a sharded optimizer and a loss without its copies cost next to
    nothing; recomputing attention's kernel little; more ranks per model communicate more; full recompute adds
    a third of the forward pass's time; the host's link is slower than any of these.
    """
    now, program, devices = subject.question, subject.training.program, subject.cluster.gpus
    torch, half = program in ("torchtitan", "deepspeed"), now.micro_batch_size // 2
    if now.zero == 0 and devices // (now.tp * now.pp) > 1:
        yield "ZeRO-1", {"zero": 1}
    if program == "torchtitan" and not subject.training.fused_loss:
        yield "loss in chunks", {"loss_chunks": LOSS_CHUNKS}
    if torch and now.zero < 3:
        yield f"ZeRO-{now.zero + 1}", {"zero": now.zero + 1}
    if half:
        yield f"micro-batch {half}", {"micro_batch_size": half}
    if now.recompute == "none":
        yield "selective recompute", {"recompute": "selective"}
    for name in ("tp", "pp", "cp", *(("ep",) if subject.shape.num_experts else ())):
        size = 2 * getattr(now, name)
        yield f"{name} {size}", {name: size}
    if now.recompute != "full":
        yield "full recompute", {"recompute": "full"}
        yield f"full recompute and tp {2 * now.tp}", {"recompute": "full", "tp": 2 * now.tp}
        yield f"full recompute and pp {2 * now.pp}", {"recompute": "full", "pp": 2 * now.pp}
    yield f"{2 * devices:,} GPUs", {"devices": 2 * devices}
    if torch and subject.training.offload == "none":
        yield "states on the host", {"offload": ("optimizer",), "zero": 3}


def changes(subject: LayoutSubject) -> Iterator[TriedChange]:
    """Yield what each change needs, with the allocator's fragmentation, whether it fits, and up to what."""
    for change, fields in possible(subject):
        try:
            other = changed(subject, **fields)
        except Unavailable:
            continue
        if other.question.tp > other.cluster.gpus_per_node:
            continue
        of, largest = fits(other, other.layout), largest_micro_batch(other, other.layout)
        yield TriedChange(
            title=change,
            peak_B=float(of.needed[0]),
            fits=bool(of.fits[0]),
            retries=bool(of.retries[0]),
            largest_micro_batch=int(largest[0]),
        )
