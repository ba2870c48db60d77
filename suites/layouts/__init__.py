"""The layouts suite: which layouts of a pretraining step fit its GPUs, and which is the fastest.

Nothing is allocated or run: a closed account of what the training program keeps answers
(suites/training/layouts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from harness.records import Json, Note, Origin, Reading
from suites.layouts.changes import changes
from suites.layouts.seconds import of_seconds
from suites.layouts.subject import Subject, Workload, parts_note, subject_of
from suites.training.layouts.account import LayoutPeak, peak_of_rank, worst_peak
from suites.training.layouts.host import host_B
from suites.training.layouts.layout import DEFAULT_MODULES
from suites.training.layouts.search import (
    candidates,
    dominated,
    fits,
    largest_micro_batch,
    title,
    with_micro_batch,
)
from suites.training.layouts.stages import all_layers_of

METHOD = "account"

EVEN, UNEVEN = 1.0, 1.5
"""Of a mixture of experts: tokens of the rank with the busiest experts over the mean, as a range."""


def build(workload: Json, seed: int) -> Subject:
    """Return the question; raises `Unavailable` where its layout does not divide."""
    return subject_of(Workload(**workload))


def check(subject: Subject) -> None:
    """Do nothing: an account has no result to compare."""


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return what the answer rests on."""
    workload = subject.workload
    return {
        "program": workload.program,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "layout": "searched" if workload.search else described(subject),
    }


def described(subject: Subject) -> str:
    """Return the layout in words, with the modules that are recomputed and another dispatcher."""
    words, training = title(subject.layout), subject.training
    if training.recompute_modules != DEFAULT_MODULES and subject.workload.recompute == "selective":
        words += f" of {' and '.join(training.recompute_modules)}"
    if training.dispatcher != "alltoall":
        words += f", tokens sent by {training.dispatcher}"
    return words


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak of the layout, or every layout that fits."""
    yield Reading("parameters", "1", subject.shape.parameters, Origin.CALCULATED)
    yield Reading("usable_memory", "B", subject.cluster.usable_B, Origin.CALCULATED, METHOD)
    if subject.workload.seconds:
        yield from of_seconds(subject)
    elif subject.workload.search:
        yield from searched(subject)
    else:
        yield from of_layout(subject)
        yield from of_host(subject)
        yield from changes(subject)


def of_layout(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak of the worst rank by part, of the first and last stage, and whether it fits."""
    layout, shape, training = subject.layout, subject.shape, subject.training
    architecture = subject.cluster.architecture
    worst = worst_peak(shape, layout, training, architecture)
    yield from of_rank("peak_memory", worst)
    yield Reading("stage", "1", int(worst.stage[0]), Origin.CALCULATED, METHOD)
    for name, rank in (("first_stage", 0), ("last_stage", int(layout.pp[0]) - 1)):
        of_stage = peak_of_rank(shape, layout, training, np.array([rank]), architecture)
        yield calculated(f"{name}/peak_memory", float(of_stage.total_B[0]))
    if shape.num_experts:
        for name, imbalance in (("even_routing", EVEN), ("uneven_routing", UNEVEN)):
            other = worst_peak(shape, layout, replace(training, imbalance=imbalance), architecture)
            yield calculated(f"{name}/peak_memory", float(other.total_B[0]))
    of = fits(shape, layout, training, subject.cluster)
    yield parts_note(layout)
    yield calculated("needed_memory", float(of.needed[0]))
    yield calculated("room_for_allocator", float(of.room[0]))
    yield Reading("fits", "1", int(of.fits[0]), Origin.CALCULATED, METHOD)
    yield Reading("fits_with_retries", "1", int(of.retries[0]), Origin.CALCULATED, METHOD)
    largest = largest_micro_batch(
        shape, layout, training, subject.cluster, subject.workload.global_batch_size
    )
    yield Reading("largest_micro_batch", "1", int(largest[0]), Origin.CALCULATED, METHOD)


def of_rank(metric: str, peak: LayoutPeak) -> Iterator[Reading]:
    """Return a rank's peak, in total and by part."""
    yield calculated(metric, float(peak.total_B[0]))
    for part in ("states", "activations", "logits", "communication", "workspaces"):
        yield calculated(f"{metric}/{part}", float(getattr(peak, part)[0]))


def of_host(subject: Subject) -> Iterator[Reading]:
    """Return what one rank keeps on its host, where states are offloaded."""
    layout = subject.layout
    rank = np.array([0])
    layers = all_layers_of(subject.shape, layout, subject.training, rank)
    host = host_B(subject.shape, layout, subject.training, layers, rank)
    if host.asked[0]:
        yield calculated("host_memory", float(host.asked[0]))
        yield calculated("host_memory/pinned", float(host.pinned[0]))
        yield calculated("host_memory/reserved", float(host.reserved[0]))


def searched(subject: Subject) -> Iterator[Reading | Note]:
    """Return each layout that fits, which names the method, with its largest micro-batch and what that needs.

    `margin`: the share of the room that is left with one sequence per micro-batch. Layouts that recompute or
    shard more than one that fits without are left out.
    """
    batch = subject.workload.global_batch_size
    layouts = candidates(subject.shape, subject.training, subject.cluster, batch)
    yield Reading("layouts_tried", "1", len(layouts.tp), Origin.CALCULATED, METHOD)
    if not len(layouts.tp):
        return
    largest = largest_micro_batch(subject.shape, layouts, subject.training, subject.cluster, batch)
    yield Reading("layouts_that_fit", "1", int((largest > 0).sum()), Origin.CALCULATED, METHOD)
    chosen = np.flatnonzero((largest > 0) & ~dominated(layouts, largest))
    best = with_micro_batch(layouts, np.maximum(largest, 1), batch)
    of = fits(subject.shape, best, subject.training, subject.cluster)
    one = fits(subject.shape, layouts, subject.training, subject.cluster)
    margin = 1 - one.needed / one.room
    order = sorted(chosen, key=lambda index: (int(layouts.recompute[index]), -float(margin[index])))
    for index in order:
        name = title(layouts, int(index))
        yield Reading("largest_micro_batch", "1", int(largest[index]), Origin.CALCULATED, name)
        yield Reading("margin", "1", float(margin[index]), Origin.CALCULATED, name)
        yield Reading("needed_memory", "B", float(of.needed[index]), Origin.CALCULATED, name)
        yield Reading("retries", "1", int(of.retries[index]), Origin.CALCULATED, name)
    if order:
        yield parts_note(best, int(order[0]))


def calculated(metric: str, value_B: float) -> Reading:
    """Return bytes of the account."""
    return Reading(metric, "B", value_B, Origin.CALCULATED, METHOD)


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
