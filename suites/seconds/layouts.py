"""The layouts suite: which layouts of a pretraining step fit its GPUs.

The account of suites/training answers. Nothing is allocated or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.answer import Answer
from harness.question import Question, question_of
from harness.records import Json, Origin, Reading
from suites.seconds.workload import LayoutsWorkload
from suites.training import account_engine
from suites.training.layouts.search import LayoutSubject
from suites.training.of_question import subject_of


class Subject(NamedTuple):
    """A workload as a question that was checked."""

    workload: LayoutsWorkload
    checked: LayoutSubject


def built(workload: LayoutsWorkload) -> Subject:
    """Return the subject; raises `Unavailable` for a model without a shape, or what does not divide."""
    return Subject(workload, subject_of(question(workload), workload.architecture))


def question(workload: LayoutsWorkload) -> Question:
    """Return a workload as a question."""
    return question_of(
        config=workload.hf_config,
        devices=workload.gpus,
        memory_B=workload.usable_memory_B,
        gpus_per_node=workload.gpus_per_node,
        seq_len=workload.seq_len,
        micro_batch_size=workload.micro_batch_size,
        global_batch_size=workload.global_batch_size,
        search=workload.search,
        tp=workload.tp,
        pp=workload.pp,
        cp=workload.cp,
        ep=workload.ep,
        etp=workload.etp,
        virtual_stages=workload.virtual_stages,
        zero=workload.zero,
        shard_size=workload.shard_size,
        sequence_parallel=workload.sequence_parallel,
        precision=workload.precision,
        optimizer=workload.optimizer,
        recompute=workload.recompute,
        recompute_modules=workload.recompute_modules,
        dispatcher=workload.dispatcher,
        offload=() if workload.offload == "none" else (workload.offload,),
        fused_loss=workload.fused_loss,
        program=workload.program,
    )


METHOD = "account"


def build(workload: Json, seed: int) -> Subject:
    """Return the question; raises `Unavailable` where its layout does not divide."""
    return built(LayoutsWorkload(**workload))


def check(subject: Subject) -> None:
    """Do nothing: an account has no result to compare."""


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return what the answer rests on."""
    return account_engine.conditions(subject.checked)


def sample(subject: Subject) -> Iterator[Reading]:
    """Return the peak of the layout, or of every layout that fits."""
    answer = account_engine.answer_of(subject.checked)
    assert answer.parameters is not None
    yield calculated("parameters", "1", answer.parameters, "")
    yield calculated("usable_memory", "B", subject.workload.usable_memory_B)
    if subject.workload.search:
        yield from search_readings(answer)
    else:
        yield from layout_readings(answer)


def calculated(metric: str, unit: str, value: float, method: str = METHOD) -> Reading:
    """Return a value that the account gives."""
    return Reading(metric, unit, value, Origin.CALCULATED, method)


def layout_readings(answer: Answer) -> Iterator[Reading]:
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


def search_readings(answer: Answer) -> Iterator[Reading]:
    """Return each layout that fits, which names the method, with its largest micro-batch and what that needs.

    `margin`: the share of the room that is left with one sequence per micro-batch.
    """
    for metric in ("layouts_tried", "layouts_that_fit"):
        if (count := getattr(answer, metric)) is not None:
            yield calculated(metric, "1", count)
    for layout in answer.layouts:
        yield calculated("largest_micro_batch", "1", layout.largest_micro_batch or 0, layout.title)
        yield calculated("margin", "1", layout.margin or 0.0, layout.title)
        yield calculated("needed_memory", "B", layout.needed_B, layout.title)
        yield calculated("retries", "1", int(layout.retries), layout.title)


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
