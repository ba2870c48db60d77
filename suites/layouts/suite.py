"""The layouts suite: which layouts of a pretraining step fit its GPUs, and which is the fastest.

The engines of suites/training answer. Nothing is allocated or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.answer import Answer, RankedLayout
from harness.records import Json, Note, Origin, Reading
from suites.layouts.subject import Subject, built
from suites.layouts.workload import Workload
from suites.training import account_engine, seconds_engine

METHOD = "account"
SECONDS_METHOD = "step_time"


def build(workload: Json, seed: int) -> Subject:
    """Return the question; raises `Unavailable` where its layout does not divide."""
    return built(Workload(**workload))


def check(subject: Subject) -> None:
    """Do nothing: an account has no result to compare."""


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return what the answer rests on."""
    return account_engine.conditions(subject.checked)


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak or the seconds of the layout, or of every layout that fits."""
    engine = seconds_engine if subject.workload.seconds else account_engine
    answer = engine.answer_of(subject.checked)
    assert answer.parameters is not None
    yield calculated("parameters", "1", answer.parameters, "")
    yield calculated("usable_memory", "B", subject.workload.usable_memory_B)
    if subject.workload.seconds:
        yield from seconds_readings(answer)
    elif subject.workload.search:
        yield from search_readings(answer)
    else:
        yield from layout_readings(answer)


def calculated(metric: str, unit: str, value: float, method: str = METHOD) -> Reading:
    """Return a value that the account or the model of seconds gives."""
    return Reading(metric, unit, value, Origin.CALCULATED, method)


def layout_readings(answer: Answer) -> Iterator[Reading | Note]:
    """Return the worst rank's peak by part, whether the layout fits, and what changes would need."""
    memory, layout = answer.memory, answer.layouts[0]
    assert memory is not None
    yield calculated("peak_memory", "B", memory.allocated_B.likely)
    for part, size_B in memory.parts_B.items():
        yield calculated(f"peak_memory/{part}", "B", size_B)
    yield calculated("stage", "1", memory.stage)
    others = {
        "first_stage/peak_memory": memory.first_stage_B,
        "last_stage/peak_memory": memory.last_stage_B,
        "even_routing/peak_memory": memory.even_routing_B,
        "uneven_routing/peak_memory": memory.uneven_routing_B,
        "needed_memory": memory.reserved_B.likely,
        "room_for_allocator": memory.room_B,
    }
    if memory.host is not None:
        others |= {
            "host_memory": memory.host.rank_B,
            "host_memory/pinned": memory.host.pinned_B,
            "host_memory/reserved": memory.host.reserved_B,
        }
    for metric, value in others.items():
        if value is not None:
            yield calculated(metric, "B", value)
    yield parts_note(layout)
    yield calculated("fits", "1", int(layout.fits))
    yield calculated("fits_with_retries", "1", int(layout.retries))
    yield calculated("largest_micro_batch", "1", memory.largest_micro_batch or 0)
    for change in answer.changes:
        assert change.peak_B is not None
        yield calculated("with_change/needed_memory", "B", change.peak_B, change.title)
        yield calculated("with_change/fits", "1", int(bool(change.fits)), change.title)
        yield calculated(
            "with_change/largest_micro_batch", "1", change.largest_micro_batch or 0, change.title
        )


def search_readings(answer: Answer) -> Iterator[Reading | Note]:
    """Return each layout that fits, which names the method, with its largest micro-batch and what that needs.

    `margin`: the share of the room that is left with one sequence per micro-batch.
    """
    yield from tried(answer, METHOD)
    for layout in answer.layouts:
        yield calculated("largest_micro_batch", "1", layout.largest_micro_batch or 0, layout.title)
        yield calculated("margin", "1", layout.margin or 0.0, layout.title)
        yield calculated("needed_memory", "B", layout.needed_B, layout.title)
        yield calculated("retries", "1", int(layout.retries), layout.title)
    if answer.layouts:
        yield parts_note(answer.layouts[0])


def tried(answer: Answer, method: str) -> Iterator[Reading]:
    """Return how many layouts were tried, and how many fit."""
    if answer.layouts_tried is not None:
        yield calculated("layouts_tried", "1", answer.layouts_tried, method)
    if answer.layouts_that_fit is not None:
        yield calculated("layouts_that_fit", "1", answer.layouts_that_fit, method)


def seconds_readings(answer: Answer) -> Iterator[Reading | Note]:
    """Return the fastest layouts with their seconds, what switches are worth, and causes of a slower step."""
    yield from tried(answer, SECONDS_METHOD)
    for layout in answer.layouts:
        yield from of_ranked(layout)
    if answer.seconds is None:
        return
    for name, seconds in answer.seconds.parts_s.items():
        yield calculated(f"part/{name}", "s", seconds, SECONDS_METHOD)
    for name, ratio in answer.seconds.switches.items():
        yield calculated("switch", "1", ratio, name)
    for name in answer.seconds.switches_that_do_not_fit:
        yield Note(f"does not fit: {name}")
    for cause in answer.seconds.causes:
        yield calculated(f"cause/{cause.family}", "s", cause.step_s, cause.title)
    for step in answer.seconds.nearest:
        yield Reading("nearest/published", "s", step.published_s, Origin.PUBLISHED, step.title)
        yield calculated("nearest/predicted", "s", step.predicted_s, step.title)
        yield calculated("nearest/flop_per_gpu", "1", step.FLOP_per_device, step.title)
    yield Note(f"interval: {answer.layouts[0].basis}")
    yield parts_note(answer.layouts[0])


def of_ranked(layout: RankedLayout) -> Iterator[Reading]:
    """Return one layout's seconds, what they are in tokens and FLOP, and its memory."""
    assert layout.step_s is not None
    values = (
        ("step_time", "s", layout.step_s.likely),
        ("step_time/low", "s", layout.step_s.low),
        ("step_time/high", "s", layout.step_s.high),
        ("tokens_per_s_per_device", "token/s", layout.tokens_per_s_per_device),
        ("model_flop_rate", "FLOP/s", layout.model_FLOP_per_s),
        ("mfu", "1", layout.mfu),
        ("needed_memory", "B", layout.needed_B),
        ("room_for_allocator", "B", layout.room_B),
        ("retries", "1", int(layout.retries)),
    )
    for metric, unit, value in values:
        if value is not None:
            yield calculated(metric, unit, value, layout.title)


def parts_note(layout: RankedLayout) -> Note:
    """Return every part of the layout that an answer has first, as `layout=` has them."""
    return Note("parts: " + ",".join(f"{name}:{size}" for name, size in layout.parts.items()))


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
