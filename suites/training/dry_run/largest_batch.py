"""Whether a step fits its device, and the largest micro-batch that does; what other choices would change.

A step fits where a replay of its dry run's allocations finds room for each of them on the device. Torch's
allocator rounds, caches and splits blocks, so that it needs more than the live bytes. The room is what
others leave to it: the CUDA context and NCCL's buffers are outside the allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

from harness.answer import OtherChoice
from harness.instruments.memory.caching_allocator import AllocatorSettings, DeviceFullError, replay
from harness.instruments.memory.memory_timeline import MemoryEvent, Timeline
from harness.records import Unavailable
from suites.training.dry_run.dry_run import DryRun
from suites.training.layouts.room import CUDA_CONTEXT_B, NCCL_OF_MORE_B, NCCL_OF_TWO_B
from suites.training.step import TrainingStep
from suites.training.techniques import build_step
from suites.training.workload import Workload


def outside_allocator_B(step: TrainingStep) -> dict[str, int]:
    """Return the bytes of one of the step's ranks outside torch's allocator on CUDA, by what takes them.

    Ranks that shard states have one communicator. Ranks with the same shard of copies of the states have
    another, and so have tensor-parallel ones, those of a pipeline, and context-parallel and expert-parallel
    ones where they are not all ranks, and those that shard the same experts.
    """
    outside_B = {"cuda_context": CUDA_CONTEXT_B}
    alone = step.features.sharding in ("context", "expert")  # then these ranks are all ranks
    same_part = step.ranks // (step.tensor_ranks * step.pipeline_ranks)
    sizes = [step.shard_ranks, same_part // step.shard_ranks, step.tensor_ranks, step.pipeline_ranks]
    if not alone:
        sizes += [step.context_ranks, step.expert_ranks]
        if step.expert_ranks > 1:
            of_experts = step.expert_ranks * step.expert_tensor_ranks
            sizes.append(step.ranks // step.pipeline_ranks // of_experts)
    groups = [ranks for ranks in sizes if ranks > 1]
    if groups:
        outside_B["nccl_buffers"] = sum(NCCL_OF_TWO_B if ranks == 2 else NCCL_OF_MORE_B for ranks in groups)
    return outside_B


def room_B(step: TrainingStep, usable_B: float) -> float:
    """Return what torch's allocator can reserve of what a process can use; not above 0 without room."""
    return usable_B - sum(outside_allocator_B(step).values())


MOST_SEQUENCES = 65_536
"""The largest micro-batch that is searched."""

PATIENCE = 6
"""Dry runs after which the bracket is halved in place of trusting predictions."""

RunOf = Callable[[int], DryRun]
"""Micro-batch to its dry run."""


class Target(NamedTuple):
    """The device that a step must fit: the bytes that a process can use, and its allocator's options."""

    usable_B: float
    allocator: AllocatorSettings = AllocatorSettings()


class Fit(NamedTuple):
    """Whether a step fits: `retries` is how often the allocator frees its cache for that, in two steps."""

    fits: bool
    retries: int


def with_micro_batch(step: TrainingStep, count: int) -> TrainingStep:
    """Return the step with `count` sequences in a micro-batch."""
    if count == step.workload.micro_batch_size:
        return step
    return replace(step, workload=replace(step.workload, micro_batch_size=count))


def fit_of(step: TrainingStep, run: DryRun, target: Target) -> Fit:
    """Return whether the run's allocations find room on the target, as its allocator is set up."""
    room = room_B(step, target.usable_B)
    if run.timeline is None or run.reserved_B is None:
        return Fit(run.peak_B <= room, 0)
    return _replayed(run.timeline.events, target.allocator, room)


def _replayed(events: list[MemoryEvent], settings: AllocatorSettings, capacity_B: float) -> Fit:
    requests = ((one.storage, one.delta_B, one.stream) for one in events)
    try:
        return Fit(True, replay(requests, settings, capacity_B).retries)
    except DeviceFullError:
        return Fit(False, 0)


def search(step: TrainingStep, target: Target, run_at: RunOf) -> tuple[int, list[int]]:
    """Return the largest micro-batch that fits, 0 where one sequence does not, and those that were dry-run.

    Which to try next is predicted by scaling the last one. Assumes that fewer sequences fit where more do.
    """
    low, high = 0, MOST_SEQUENCES + 1
    tried: list[int] = []
    count = step.workload.micro_batch_size
    while high - low > 1:
        run = run_at(count)
        tried.append(count)
        low, high = (count, high) if fit_of(step, run, target).fits else (low, count)
        if high - low <= 1:
            break
        if len(tried) < PATIENCE:
            predicted = predicted_largest(step, target, run, count, low, high)
        else:
            predicted = 2 * low if high > MOST_SEQUENCES else (low + high) // 2
        count = min(max(predicted, low + 1), high - 1)
    return low, tried


def refined_prediction(step: TrainingStep, target: Target, run_at: RunOf) -> int:
    """Return the largest micro-batch as predicted from the requested one, then again from the prediction."""
    requested = step.workload.micro_batch_size
    predicted = predicted_largest(step, target, run_at(requested), requested)
    if predicted in (0, requested):
        return predicted
    return predicted_largest(step, target, run_at(predicted), predicted)


def predicted_largest(
    step: TrainingStep, target: Target, run: DryRun, count: int, low: int = 0, high: int = MOST_SEQUENCES + 1
) -> int:
    """Return the largest micro-batch from `low` to below `high` that fits, predicted by scaling a dry run.

    `count`: the micro-batch of the run. Returns `low` where nothing above it fits. More sequences may fit
    again where fewer do not, because the allocator then frees its cache at another moment. So the search
    starts at the largest that fits without that.
    """
    workload = replace(step.workload, micro_batch_size=count)

    @cache
    def fit_at(more: int) -> Fit:
        return predicted_fit(step, target, run, workload, more)

    low = largest_that(lambda more: fit_at(more) == Fit(True, 0), low, high)
    return largest_that(lambda more: fit_at(more).fits, low, high)


def largest_that(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number from `low` to below `high` that fits, in steps that double, then halve."""
    width = 1
    while low + width < high and fits(low + width):
        low, width = low + width, 2 * width
    high = min(high, low + width)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def predicted_fit(step: TrainingStep, target: Target, run: DryRun, workload: Workload, count: int) -> Fit:
    """Return whether `count` sequences would fit, had each tensor so many of them; `workload`: the run's."""
    room = room_B(step, target.usable_B)
    if run.timeline is None or run.reserved_B is None:
        return Fit(run.peak_B / workload.micro_batch_size * count <= room, 0)
    return _replayed(scaled(run.timeline, workload, count), target.allocator, room)


def scaled(timeline: Timeline, workload: Workload, count: int) -> list[MemoryEvent]:
    """Return the events with `count` sequences in place of the workload's: a prediction from shapes."""
    share = count / workload.micro_batch_size
    grows: set[int] = set()
    events = []
    for event in timeline.events:
        if event.delta_B > 0 and _has_tokens(timeline, event, workload):
            grows.add(event.storage)
        by = share if event.storage in grows else 1
        events.append(event._replace(delta_B=round(event.delta_B * by)))
    return events


def _has_tokens(timeline: Timeline, event: MemoryEvent, workload: Workload) -> bool:
    """Return whether a storage grows with the micro-batch, as its first result's shape has it."""
    shape, phase = event.place.shape, event.place.phase
    if timeline.kinds[event.storage] not in ("activations", "temporaries"):
        return False
    if not phase.startswith(("forward", "backward")) or prod(shape) % workload.micro_batch_size:
        return False
    if event.delta_B < workload.micro_batch_size:  # an operation's random state, whose shape is not noted
        return False
    tokens = workload.micro_batch_size * workload.seq_len
    of_tokens = tokens in shape or shape[:1] == (workload.micro_batch_size,)
    return of_tokens or len(shape) != 2 or shape[-1] == workload.vocab_size


WITH_IMPLEMENTATIONS = ("adamw", "sgd_momentum")
"""Optimizers of which torch has several implementations that differ in their temporaries."""


def under_other_choices(
    step: TrainingStep,
    target: Target,
    largest: int,
    run_of: Callable[[TrainingStep], DryRun],
    optimizer_is_known: bool = False,
) -> Iterator[OtherChoice]:
    """Yield the answer under each other choice.

    torch's default on CUDA is foreach, whose temporaries are as large as the parameters. A script may keep
    the logits in a variable, as transformers' Trainer does.

    `largest`: that of the step. `run_of`: dry-runs a step. The largest micro-batch of a choice is predicted
    where that of the step does not fit. `optimizer_is_known`: a file or its program says which it is.
    """
    requested = step.workload.micro_batch_size
    no_change = ""
    for name, other in other_choices(step, optimizer_is_known):
        if no_change and name.startswith(no_change):
            continue  # foreach has the largest temporaries
        at = largest or requested
        changed = with_micro_batch(other, at)
        try:
            run = run_of(changed)
            found = at
            if not fit_of(changed, run, target).fits:
                found = predicted_largest(changed, target, run, at)
            fits = found >= requested
            if at != requested and found < at:
                fits = fit_of(other, run_of(other), target).fits
                found = max(found, requested) if fits else min(found, requested - 1)
        except Unavailable:
            continue
        if found == at:
            no_change = name.partition("=")[0]
        yield OtherChoice(choice=name, fits=fits, largest_micro_batch=found)


def other_choices(step: TrainingStep, optimizer_is_known: bool = False) -> Iterator[tuple[str, TrainingStep]]:
    """Yield each other choice that the recipe leaves open, by name, with its step."""
    techniques = dict(step.techniques)
    several = step.workload.optimizer in WITH_IMPLEMENTATIONS and not optimizer_is_known
    if several and step.workload.optimizer_impl == "fused":
        own: Mapping[str, Any] = techniques.get("optimizer", {})
        for impl in ("default", "for_loop") if "impl" not in own else ():
            with suppress(Unavailable):
                changed = {**techniques, "optimizer": {**own, "impl": impl}}
                yield f"optimizer_impl={impl}", build_step(step.given, tuple(changed.items()), step.seed)
    if "loss" not in techniques:
        with suppress(Unavailable):
            changed = {**techniques, "loss": {"keep_logits": "model"}}
            yield "keep_logits=model", build_step(step.given, tuple(changed.items()), step.seed)
