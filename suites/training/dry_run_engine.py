"""The engine of questions that a dry run answers: the program itself, on fake tensors. It needs torch.

`answers` yields the verdict as soon as one dry run has it, then the largest micro-batch, then changes.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Any

import msgspec
import torch

from harness.answer import Answer, HostStates, Interval, Memory, Peak, TriedChange
from harness.config.hf_config import workload_of_config
from harness.instruments.memory.caching_allocator import AllocatorSettings
from harness.instruments.memory.dry_run.layer_repetition import Pattern
from harness.instruments.memory.dry_run.substitutes import defer_compiler
from harness.question import AskedChange, DryRunRequest, Question
from harness.records import Unavailable, UnavailableWith
from suites.training.dry_run.dry_run import Device, DryRun, dry_run
from suites.training.dry_run.estimates import count, host_memory_B
from suites.training.dry_run.largest_batch import (
    Target,
    fit_of,
    outside_allocator_B,
    refined_prediction,
    room_B,
    search,
    under_other_choices,
    with_micro_batch,
)
from suites.training.dry_run.live_tensors import live_tensors
from suites.training.dry_run.trace_cache import user_cache
from suites.training.models import huggingface
from suites.training.models.huggingface_config import parse
from suites.training.models.light_transformers import import_lightly
from suites.training.step import TrainingStep
from suites.training.step_time.gpu import known_gpu
from suites.training.techniques import build_step
from suites.training.trainer import build_model
from suites.training.workload import Workload

NOT_GIVEN = ("assumption", "default")
"""Origins of a technique that an answer may do without, and says so."""


def answers(request: DryRunRequest) -> Iterator[Answer]:
    """Yield the answer, and again whenever more is known; raises `Unavailable` where it cannot be had.

    Begin the process with `gc.disable()`, which makes imports faster.
    """
    question = request.question
    try:
        answer = yield from answered(request, question)
    except UnavailableWith as error:
        techniques = tuple(one for one in question.techniques or () if one[0] != error.technique)
        if not may_go(question, error.technique):
            raise
        question = msgspec.structs.replace(question, techniques=techniques)
        note = f"{error.reason}, so the recipe goes without."
        answer = yield from answered(request, question, without=(error.technique,), notes=(note,))
    changes = tuple(changed(change, answer.without) for change in request.changes)
    if changes:
        yield answer.with_(changes=changes)


def may_go(question: Question, technique: str) -> bool:
    """Return whether nothing but an assumption or a framework's default asks for a technique.

    Of attention and fused layers a file may ask for kernels that its program or transformers has not.
    """
    if technique in ("attention", "fused_layers") and question.format:
        return question.origin("techniques").kind in NOT_GIVEN
    kinds = question.origin(technique).kind, question.origin("techniques").kind
    return kinds[0] in NOT_GIVEN and kinds[1] in NOT_GIVEN


def answered(
    request: DryRunRequest,
    question: Question,
    without: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Generator[Answer, None, Answer]:
    """Yield the answer to a request's question, or to another, without changes; return the last.

    The first has the requested micro-batch and what the step is made of; where the largest is asked for, the
    next have that, and what the recipe leaves open and could turn the answer.
    """
    runs = StepRuns(question)
    peak = peak_of(runs, runs.requested, request.slack)
    step, room, outside_B = runs.step, room_B(runs.step, runs.target.usable_B), outside_allocator_B(runs.step)
    with torch.device("meta"):
        counts = count(build_model(step), step.workload)
    host_B = host_memory_B(step, counts)
    memory = Memory(
        usable_B=room + sum(outside_B.values()),
        room_B=room,
        outside_B={name: float(size_B) for name, size_B in outside_B.items()},
        allocated_B=Interval(*(peak.allocated_B,) * 3),
        reserved_B=Interval(*(peak.reserved_B,) * 3),
        peaks=(peak,),
        host=HostStates(rank_B=host_B) if host_B else None,
    )
    answer = Answer(
        verdict="fits" if peak.fits else "does not fit",
        likely_fits=peak.fits,
        parameters=float(counts.parameters),
        memory=memory,
        notes=(*notes, *huggingface.by_default(step.workload.hf_config)),
        without=without,
    )
    yield answer
    if request.extent == "asked":
        return answer
    largest, tried = search(step, runs.target, runs.at)
    peaks = tuple(peak_of(runs, size, request.slack) for size in sorted({runs.requested, *tried}))
    answer = answer.with_(memory=msgspec.structs.replace(memory, peaks=peaks, largest_micro_batch=largest))
    yield answer
    known = question.origin("optimizer_impl").kind != "assumption"
    others = tuple(under_other_choices(step, runs.target, largest, runs.of_step, known))
    if others:
        answer = answer.with_(others=others)
        yield answer
    return answer


def workload_of(question: Question) -> Mapping[str, Any]:
    """Return the fields of `workload.Workload` that a question has.

    Sizes without an architecture are fields themselves. Their code is the user's own, or Llama's here.
    """
    sizes = question.config or {}
    fields = workload_of_config(sizes)[0] if "model_type" in sizes else dict(sizes)
    if question.model_code:
        fields = {**sizes, **fields, "hf_config": None, "model": question.model_code}
    if question.adapters is not None and question.adapters.prompts:
        fields = without_library(fields)
    return fields | {
        "seq_len": question.seq_len,
        "micro_batch_size": question.micro_batch_size,
        "dp_size": question.devices,
        "optimizer_impl": "fused",
    }


def version_of(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def without_library(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload's fields with the model of `models.model` in place of transformers', of its sizes.

    LLaMA-Adapter's prompts are built for its attention alone. It has Llama's parts or, where the config
    names no epsilon of RMSNorm, GPT's.
    """
    known = {one.name for one in dataclass_fields(Workload)}
    whole = asdict(huggingface.complete(Workload(**{k: v for k, v in fields.items() if k in known})))
    llama = hasattr(parse(fields["hf_config"]), "rms_norm_eps")
    kind = {"norm": "rms", "mlp": "swiglu"} if llama else {"norm": "layer", "mlp": "gelu", "bias": True}
    return {**whole, **kind, "hf_config": None}


class StepRuns:
    """Dry runs of a question's step with several micro-batches, and the device that it must fit.

    Raises `Unavailable` where a technique does not apply or two do not combine.
    """

    def __init__(self, question: Question) -> None:
        gpu = known_gpu(question.device)
        workload = workload_of(question)
        defer_compiler()
        if workload.get("hf_config") is not None:
            import_lightly()
        gc.freeze()  # what imports made, so that no collection looks at it
        gc.enable()
        self.step = build_step(workload, question.techniques or (), 0)
        self.requested = self.step.workload.micro_batch_size
        self.device = Device(
            "cuda",
            architecture=gpu.architecture,  # type: ignore[arg-type]
            allocator=AllocatorSettings(expandable_segments=question.expandable_segments),
            fsdp2_copies_on_own_stream=question.torch is not None and version_of(question.torch) < (2, 5),
        )
        self.target = Target(question.memory_B or gpu.usable_memory_B, self.device.allocator)
        found: list[Pattern] = []  # how this step's layers repeat
        self.at = cache(lambda size: self.of_step(with_micro_batch(self.step, size), found))

    def of_step(self, step: TrainingStep, found: list[Pattern] | None = None) -> DryRun:
        """Return the dry run of a step on the device."""
        return dry_run(
            step,
            self.device,
            found=found,
            make_first_step=True,
            in_two_processes=True,
            traces=user_cache(),
        )


def peak_of(runs: StepRuns, size: int, slack: float) -> Peak:
    """Return what the dry run of `size` sequences shows.

    `slack`: by how much each allocation may be larger.
    """
    step, target, run = runs.step, runs.target, runs.at(size)
    fit, room = fit_of(step, run, target), room_B(step, target.usable_B)
    expandable = target._replace(allocator=replace(target.allocator, expandable_segments=True))
    reserved_B = float(run.reserved_B or run.peak_B)
    fits_with_slack = fit.fits
    if fit.fits and reserved_B * slack > room:  # else nothing is in its way
        smaller_B = target.usable_B - room * (1 - 1 / slack)
        fits_with_slack = fit_of(step, run, target._replace(usable_B=smaller_B)).fits
    workload, timeline = step.workload, run.timeline
    assert timeline is not None
    live_B = live_tensors(timeline, workload.vocab_size, workload.seq_len)
    return Peak(
        micro_batch_size=size,
        fits=fit.fits,
        allocated_B=float(run.allocated_B or run.peak_B),
        reserved_B=reserved_B,
        fits_expandable=fit_of(step, run, expandable).fits,
        fits_with_slack=fits_with_slack,
        retries=fit.retries,
        by_kind_B={kind: float(size_B) for kind, size_B in run.by_kind_B.items()},
        live_B={label: float(size_B) for label, size_B in live_B.items()},
    )


def changed(change: AskedChange, without: tuple[str, ...]) -> TriedChange:
    """Return what a change of the question needs, and its largest micro-batch, predicted from its dry run."""
    question = change.question
    if question is None:
        return TriedChange(title=change.title, reason=change.reason)
    techniques = tuple(one for one in question.techniques or () if one[0] not in without)
    try:
        runs = StepRuns(msgspec.structs.replace(question, techniques=techniques))
        run = runs.at(runs.requested)
        fit = fit_of(runs.step, run, runs.target)
        largest = refined_prediction(runs.step, runs.target, runs.at)
    except Unavailable as error:
        return TriedChange(title=change.title, reason=str(error).split("\n")[0])
    return TriedChange(
        title=change.title,
        peak_B=float(run.allocated_B or run.peak_B),
        fits=fit.fits,
        retries=bool(fit.retries),
        largest_micro_batch=largest,
    )
