"""Does a training step fit a device, and with which micro-batch at most? The engine of `harness.fit`.

`answers` yields each part of the answer as soon as it is known: one dry run answers whether the requested
micro-batch fits, a few more find the largest one that does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import torch

from harness.instruments.deferred_compiler import defer_compiler
from harness.instruments.memory.dry_run.layer_repetition import Pattern
from harness.instruments.memory.memory_timeline import OpSite
from suites.training import correctness
from suites.training.dry_run.dry_run import Device, DryRun, dry_run
from suites.training.dry_run.estimates import ModelCounts, count, host_memory_B
from suites.training.dry_run.largest_batch import (
    Target,
    fit_of,
    refined_prediction,
    search,
    with_micro_batch,
)
from suites.training.dry_run.live_tensors import live_tensors
from suites.training.dry_run.other_choices import DryRunChoice, under_other_choices
from suites.training.dry_run.outside_allocator import outside_allocator_B, room_B
from suites.training.dry_run.trace_cache import TraceCache
from suites.training.models import huggingface
from suites.training.models.light_transformers import import_lightly
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step
from suites.training.trainer import build_model

Extent = Literal["asked", "predicted", "largest"]
"""What is looked for beyond the requested micro-batch: nothing; the largest one, predicted from its dry run;
the largest one by further dry runs, and what the recipe leaves open and could turn the answer."""

CUDA = Device("cuda")


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """A training step and the device that it must fit, as plain data.

    `workload`: fields of `workload.Workload`; those of a suite's may be among them. `usable_B`: what a
    process can use of the device.
    """

    workload: Mapping[str, Any]
    techniques: Techniques
    usable_B: float
    device: Device = CUDA
    seed: int = 0
    slack: float = 1.0  # by how much each allocation may be larger than its dry run's

    @property
    def target(self) -> Target:
        """Return the device that the step must fit."""
        return Target(self.usable_B, self.device.allocator)


class MicroBatch(NamedTuple):
    """One dry run: whether a micro-batch fits, its peak, and what is alive then, largest first.

    `retries`: how often the allocator frees its cache in two steps to make room. `reserved_B`: what it would
    reserve on a device without limit; None where it is not simulated. `room_B`: what it can reserve here.
    """

    size: int
    fits: bool
    fits_with_expandable_segments: bool
    fits_with_slack: bool
    retries: int
    peak_B: int
    reserved_B: int | None
    room_B: float
    by_kind_B: Mapping[str, int]
    live_at_peak_B: Mapping[str, int]
    place: OpSite
    rank: int
    peaks_of_ranks_B: tuple[tuple[int, int], ...]


class StepFacts(NamedTuple):
    """What the step is made of. `sizes_by_default`: those that a config.json leaves to its library.

    `outside_allocator_B`: by what takes it. `host_B`: of states that one rank keeps on its host; 0 where
    nothing is there, or it is not known.
    """

    counts: ModelCounts
    model_code: str
    sizes_by_default: Mapping[str, int]
    outside_allocator_B: Mapping[str, int]
    host_B: float
    notes: tuple[str, ...]


class LargestMicroBatch(NamedTuple):
    """The largest micro-batch that fits, 0 where one sequence does not.

    `dry_runs`: those on which it rests, by size; without any it is predicted from the requested one.
    """

    size: int
    dry_runs: tuple[MicroBatch, ...]


AnswerPart = MicroBatch | StepFacts | LargestMicroBatch | DryRunChoice


def step_of(question: MemoryQuestion) -> TrainingStep:
    """Return the step; raises `Unavailable` where a technique does not apply or two do not combine."""
    return build_step(question.workload, question.techniques, question.seed)


def answers(
    question: MemoryQuestion, extent: Extent = "largest", traces: TraceCache | None = None
) -> Iterator[AnswerPart]:
    """Yield the requested micro-batch, facts about the step, the largest micro-batch, and other choices.

    `traces`: see `trace_cache.user_cache`; without it every dry run is traced. Begin the process with
    `gc.disable()`, which makes imports faster. Raises `Unavailable`, in one line, where no such step can be
    simulated.
    """
    defer_compiler()
    if question.workload.get("hf_config") is not None:
        import_lightly()
    gc.freeze()  # what imports made, so that no collection looks at it
    gc.enable()
    step = step_of(question)
    found: list[Pattern] = []  # how this step's layers repeat

    def run_of(changed: TrainingStep, found: list[Pattern] | None = None) -> DryRun:
        return dry_run(
            changed,
            question.device,
            found=found,
            make_first_step=True,
            in_two_processes=True,
            traces=traces,
        )

    @cache
    def run_at(size: int) -> DryRun:
        return run_of(with_micro_batch(step, size), found)

    requested = step.workload.micro_batch_size
    yield micro_batch_of(step, question, requested, run_at(requested))
    yield facts_of(step)
    if extent == "predicted":
        yield LargestMicroBatch(refined_prediction(step, question.target, run_at), ())
    if extent == "largest":
        largest, tried = search(step, question.target, run_at)
        sizes = sorted({requested, *tried})
        runs = tuple(micro_batch_of(step, question, size, run_at(size)) for size in sizes)
        yield LargestMicroBatch(largest, runs)
        yield from under_other_choices(step, question.target, largest, run_of)


def micro_batch_of(step: TrainingStep, question: MemoryQuestion, size: int, run: DryRun) -> MicroBatch:
    """Return what the dry run of `size` sequences shows."""
    expandable = replace(question.target.allocator, expandable_segments=True)
    fit = fit_of(step, run, question.target)
    better = fit_of(step, run, question.target._replace(allocator=expandable))
    workload, timeline, room = step.workload, run.timeline, room_B(step, question.usable_B)
    assert timeline is not None
    slack = fit.fits
    if fit.fits and (run.reserved_B or run.peak_B) * question.slack > room:  # else nothing is in its way
        smaller_B = question.usable_B - room * (1 - 1 / question.slack)
        slack = fit_of(step, run, question.target._replace(usable_B=smaller_B)).fits
    return MicroBatch(
        size,
        fit.fits,
        better.fits,
        slack,
        fit.retries,
        run.peak_B,
        run.reserved_B,
        room,
        run.by_kind_B,
        live_tensors(timeline, workload.vocab_size, workload.seq_len),
        run.place,
        run.rank,
        run.peaks_B,
    )


def facts_of(step: TrainingStep) -> StepFacts:
    """Return what a step is made of; builds its model without allocating it."""
    with torch.device("meta"):
        counts = count(build_model(step), step.workload)
    config = step.workload.hf_config
    return StepFacts(
        counts,
        step.features.model_code,
        {} if config is None else huggingface.sizes_by_default(config),
        outside_allocator_B(step),
        host_memory_B(step, counts),
        step.notes,
    )


def check(question: MemoryQuestion) -> None:
    """Train a small model with the recipe in this process; raises `WrongResult` where it breaks its contract.

    An answer does not depend on it.
    """
    correctness.check_as_traced(step_of(question))
