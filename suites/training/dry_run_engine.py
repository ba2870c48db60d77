"""The engine of questions that a dry run answers: the program itself, on fake tensors. It needs torch.

`answers` yields the verdict as soon as one dry run has it, then the largest micro-batch, then changes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from harness.answer import Answer, HostStates, Interval, Memory, OtherChoice, Peak, TriedChange
from harness.config.user_inputs.hf_config import workload_of_config
from harness.question import AskedChange, DryRunRequest, Question
from harness.records import Unavailable, UnavailableWith
from suites.training.dry_run import fit, other_choices
from suites.training.dry_run.dry_run import Device
from suites.training.dry_run.trace_cache import user_cache
from suites.training.step_time.rates.gpu import RatedGpu, gpu_of

NOT_GIVEN = ("assumption", "default")
"""Origins of a technique that an answer may do without, and says so."""


def answers(request: DryRunRequest) -> Iterator[Answer]:
    """Yield the answer, and again whenever more is known; raises `Unavailable` where it cannot be had."""
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
    changes: list[TriedChange] = []
    for change in request.changes:
        changes.append(changed(change, answer.without))
    if changes:
        yield answer.with_(changes=tuple(changes))


def may_go(question: Question, technique: str) -> bool:
    """Return whether nothing but an assumption or a framework's default asks for a technique."""
    kinds = question.origin(technique).kind, question.origin("techniques").kind
    return kinds[0] in NOT_GIVEN and kinds[1] in NOT_GIVEN


def answered(request: DryRunRequest, question: Question, **fields: Any) -> Generator[Answer, None, Answer]:
    """Yield the answer to a request's question, or to another, without changes; return the last."""
    answer = Answer(verdict="refused", **fields)
    asked = memory_question(question, request.slack)
    for part in fit.answers(asked, request.extent, user_cache()):
        answer = joined(answer, part)
        if isinstance(part, fit.StepFacts | fit.LargestMicroBatch):
            yield answer
    if answer.others:
        yield answer
    return answer


def gpu_asked(question: Question) -> RatedGpu:
    """Return the device of a question."""
    gpu = gpu_of(question.device)
    if gpu is None:
        raise Unavailable(f"device={question.device}: conf/hardware has no GPU like it")
    return gpu


def memory_question(question: Question, slack: float = 1.0) -> fit.MemoryQuestion:
    """Return a question as a training step and the device that it must fit."""
    gpu = gpu_asked(question)
    fields, _ = workload_of_config(question.config or {})
    fields |= {
        "seq_len": question.seq_len,
        "micro_batch_size": question.micro_batch_size,
        "dp_size": question.devices,
        "optimizer_impl": "fused",
    }
    device = Device("cuda", architecture=gpu.architecture)  # type: ignore[arg-type]
    usable_B = question.memory_B or gpu.usable_memory_B
    return fit.MemoryQuestion(fields, question.techniques or (), usable_B, device, slack=slack)


def joined(answer: Answer, part: fit.AnswerPart) -> Answer:
    """Return the answer with one more part."""
    memory = answer.memory
    match part:
        case fit.MicroBatch():
            verdict = "fits" if part.fits else "does not fit"
            return answer.with_(memory=memory_of(part), verdict=verdict, likely_fits=part.fits)
        case fit.StepFacts():
            assert memory is not None
            host = HostStates(rank_B=part.host_B) if part.host_B else None
            outside_B = {name: float(size_B) for name, size_B in part.outside_allocator_B.items()}
            memory = msgspec.structs.replace(memory, outside_B=outside_B, host=host)
            memory = msgspec.structs.replace(memory, usable_B=memory.room_B + sum(outside_B.values()))
            sizes = ", ".join(f"{name} {size}" for name, size in part.sizes_by_default.items())
            return answer.with_(
                memory=memory,
                parameters=float(part.counts.parameters),
                notes=(*answer.notes, *([f"by default: {sizes}"] if sizes else [])),
            )
        case fit.LargestMicroBatch():
            assert memory is not None
            peaks = tuple(peak_of(one) for one in part.dry_runs) or memory.peaks
            return answer.with_(
                memory=msgspec.structs.replace(memory, peaks=peaks, largest_micro_batch=part.size)
            )
        case other_choices.DryRunChoice():
            other = OtherChoice(choice=part.name, fits=part.fits, largest_micro_batch=part.largest)
            return answer.with_(others=(*answer.others, other))


def peak_of(run: fit.MicroBatch) -> Peak:
    """Return one dry run as it is answered."""
    return Peak(
        micro_batch_size=run.size,
        fits=run.fits,
        allocated_B=float(run.peak_B),
        reserved_B=float(run.peak_B if run.reserved_B is None else run.reserved_B),
        fits_expandable=run.fits_with_expandable_segments,
        fits_with_slack=run.fits_with_slack,
        retries=run.retries,
        by_kind_B={kind: float(size_B) for kind, size_B in run.by_kind_B.items()},
        live_B={label: float(size_B) for label, size_B in run.live_at_peak_B.items()},
    )


def memory_of(run: fit.MicroBatch) -> Memory:
    """Return the memory of the asked micro-batch."""
    peak = peak_of(run)
    allocated, reserved = peak.allocated_B, peak.reserved_B
    return Memory(
        usable_B=run.room_B,
        room_B=run.room_B,
        allocated_B=Interval(allocated, allocated, allocated),
        reserved_B=Interval(reserved, reserved, reserved),
        peaks=(peak,),
    )


def changed(change: AskedChange, without: tuple[str, ...]) -> TriedChange:
    """Return what a change of the question needs."""
    question = change.question
    if question is None:
        return TriedChange(title=change.title, reason=change.reason)
    techniques = tuple(one for one in question.techniques or () if one[0] not in without)
    question = msgspec.structs.replace(question, techniques=techniques)
    try:
        parts = list(fit.answers(memory_question(question), "predicted", user_cache()))
    except Unavailable as error:
        return TriedChange(title=change.title, reason=str(error).split("\n")[0])
    run = next(one for one in parts if isinstance(one, fit.MicroBatch))
    largest = next(one.size for one in parts if isinstance(one, fit.LargestMicroBatch))
    return TriedChange(
        title=change.title,
        peak_B=float(run.peak_B),
        fits=run.fits,
        retries=bool(run.retries),
        largest_micro_batch=largest,
    )
