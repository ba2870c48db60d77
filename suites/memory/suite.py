"""The memory suite: how much device memory one rank's training step takes, by every available method.

The baseline is plain PyTorch: fp32, explicit attention, one device. A subject is the description of a step,
so nothing is allocated until a method asks for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from harness.instruments.memory.allocator import shortage
from harness.instruments.memory.dry_run.layer_repetition import Pattern
from harness.instruments.memory.memory_timeline import KINDS, Timeline
from harness.records import Json, Note, Origin, Reading, Unavailable, digest
from suites.memory import subject as assumptions
from suites.memory.formulas import estimates, gpus
from suites.memory.live_bytes import live_bytes, measure_peak, write_snapshot
from suites.memory.subject import Subject, reserved, room_B, subject_of
from suites.memory.thresholds import PeakOf, largest_batch_readings, thresholds
from suites.memory.workload import Workload
from suites.training import correctness, techniques
from suites.training.dry_run.dry_run import Device, DryRun, among_ranks, device_here, dry_run, ranks_to_run
from suites.training.dry_run.estimates import ModelCounts, count, estimator, host_memory_B
from suites.training.models import huggingface
from suites.training.trainer import build_model

NOMINAL = ("peak_memory", "reserved_memory")
"""Also as they would be if the model had the parameters that its row of Table I names."""

COMPILED_FOR_CPU = (
    "fake_step: compiled code has the buffers that Inductor chose for a CPU; for a GPU it fuses operations "
    "differently and pads matrix products, so temporaries can differ. Without any fusion, and without "
    "padding, the peak is {peak_GB:.4g} GB"
)
IN_FP32 = (
    "measured: this CPU is slow at bf16, so matrix products were computed in fp32, with the allocations of "
    "bf16; the resident memory includes 12 MB for that"
)


def preload() -> None:
    """Import the slow modules that cells need: torch._dynamo, deepspeed, and transformers where it is."""
    importlib.import_module("torch._dynamo")
    estimator(2)
    with suppress(ImportError):
        importlib.import_module("transformers.modeling_utils")


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline's training step."""
    return subject_of(Workload(**workload), seed)


def apply_techniques(subject: Subject, chosen: Sequence[tuple[str, Mapping[str, Any]]]) -> Subject:
    """Return the subject's step with techniques, each (name, settings)."""
    return replace(subject, step=techniques.apply_techniques(subject.step, chosen))


def check(subject: Subject) -> None:
    """Compare the step's losses with plain PyTorch's; raises `WrongResult`."""
    check_step = correctness.check if subject.measurable else correctness.check_as_traced
    check_step(subject.step)


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim about memory may name."""
    step, features = subject.step, subject.step.features
    workload = step.workload
    device = device_here().type if subject.simulated_device == "host" else subject.simulated_device
    return {
        "device": device,
        "optimizer": workload.optimizer,
        "precision": features.precision,
        "attention": features.attention,
        "model_code": features.model_code,
        "recompute": features.recompute,
        "sharding": features.sharding,
        "ranks": str(step.ranks),
        "batch": str(workload.sequences),
        "seq_len": str(workload.seq_len),
        "state": "; ".join(step.notes),
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak by every method, what it is made of, and how far each is from the measured one."""
    counts = count_model(subject)
    yield Note(f"model_code: the model is built by {subject.step.features.model_code}")
    yield from map(Note, huggingface.by_default(subject.step.workload.hf_config))
    step, workload = subject.step, subject.step.workload
    for field, size, ranks, technique in (
        ("cp_size", workload.cp_size, step.context_ranks, "context_parallel"),
        ("ep_size", workload.ep_size, step.expert_ranks, "expert_parallel"),
        ("pp_size", workload.pp_size, step.pipeline_ranks, "pipeline"),
    ):
        if ranks < size:
            yield Note(f"{field}={size} changes nothing: this variant has no {technique}")
    yield Reading("parameters", "1", counts.parameters, Origin.CALCULATED)
    yield Reading("tokens_per_step", "1", tokens_per_step(subject), Origin.CALCULATED)
    peaks: dict[str, float] = {}
    blocks_B: float | None = None

    found: list[Pattern] = []  # how this step's layers repeat

    @cache
    def peak_of(one: Subject, reserved: bool = True) -> DryRun:
        run = peak_of_rank(one, reserved, found)
        return run if one is subject else run._replace(timeline=None)  # a search makes many

    for reading in chain(formulas(subject, counts), simulated(subject, peak_of), measured(subject, peaks)):
        yield reading
        if isinstance(reading, Reading) and reading.metric in NOMINAL and subject.nominal_parameters:
            nominal_B = reading.value * subject.nominal_parameters / counts.parameters
            name = f"{reading.metric}/of_nominal_parameters"
            yield Reading(name, "B", nominal_B, reading.origin, reading.method)
        if isinstance(reading, Reading) and reading.metric == "peak_memory":
            peaks[reading.method] = max(reading.value, peaks.get(reading.method, 0.0))
        if isinstance(reading, Reading) and reading.metric == "allocated_memory":
            blocks_B = reading.value
    beyond = {one.method for one in estimates(subject, counts) if one.reason}
    yield from errors(subject, peaks, beyond, blocks_B)
    if subject.search != "thresholds":
        if size_B := host_memory_B(step, counts):
            yield Reading("host_memory", "B", size_B, Origin.CALCULATED, "fake_step")
        yield from largest_batch_readings(
            subject,
            lambda one: peak_of(one) if one is subject else peak_of_rank(one, True, found),
            lambda largest: assumptions.readings(subject, largest, peak_of_rank),
        )
    elif not subject.measurable:
        yield from thresholds(subject, counts, peak_of)


def tokens_per_step(subject: Subject) -> int:
    """Return the tokens that all ranks train on in one step."""
    workload = subject.step.workload
    return subject.step.data_ranks * workload.sequences * workload.seq_len


def count_model(subject: Subject) -> ModelCounts:
    """Return the model's counts, without allocating its weights."""
    with torch.device("meta"):
        return count(build_model(subject.step), subject.step.workload)


def formulas(subject: Subject, counts: ModelCounts) -> Iterator[Reading | Note]:
    """Return the closed formulas' peaks; a formula that does not cover such a step says why."""
    for estimate in estimates(subject, counts):
        if estimate.peak_B is None:
            yield Note(f"{estimate.method}: {estimate.reason}")
            continue
        yield Reading("peak_memory", "B", estimate.peak_B, Origin.CALCULATED, estimate.method)
        yield from gpus_of(subject, estimate.peak_B, Origin.CALCULATED, estimate.method)
        if estimate.reason:
            yield Note(f"{estimate.method}: {estimate.reason}")


def gpus_of(
    subject: Subject, size_B: float, origin: Origin, method: str, room_B: float | None = None
) -> Iterator[Reading | Note]:
    """Return how many devices a full model on one would fill; `room_B`: of one device, None: all of it."""
    capacity_B = subject.device_memory_B if room_B is None else room_B
    if capacity_B <= 0:
        yield Note(f"{method}: what lies outside of the allocator takes all of a device")
    elif subject.step.ranks == 1:
        yield Reading("gpus", "1", gpus(size_B, capacity_B), origin, method)


def simulated(subject: Subject, peak_of: PeakOf) -> Iterator[Reading | Note]:
    """Return the peak of a dry run by `peak_of`, in total and by kind, and what CUDA's allocator has of it.

    On CUDA `allocated_memory` is what torch.cuda.max_memory_allocated would report: blocks in use.
    """
    try:
        peak = peak_of(subject)
    except Unavailable as reason:
        yield Note(f"fake_step: {reason}")
        return
    yield Reading("peak_memory", "B", peak.peak_B, Origin.SIMULATED, "fake_step")
    if peak.reserved_B is None:
        yield from gpus_of(subject, peak.peak_B, Origin.SIMULATED, "fake_step")
    else:
        yield from gpus_of(subject, peak.reserved_B, Origin.SIMULATED, "fake_step", room_B(subject))
    if peak.allocated_B is not None:
        yield Reading("allocated_memory", "B", peak.allocated_B, Origin.SIMULATED, "fake_step")
    yield from reserved(subject, peak)
    if peak.reserved_B is not None and subject.step.settings_of("compile") is not None:
        unfused = dry_run(subject.step, device_of(subject)._replace(fused=False), reserved=False)
        yield Note(COMPILED_FOR_CPU.format(peak_GB=unfused.peak_B / 1e9))
    for kind, size_B in peak.by_kind_B.items():
        yield Reading(f"peak_memory/{kind}", "B", size_B, Origin.SIMULATED, "fake_step")
    if peak.timeline is not None:
        yield from over_the_step(subject, peak.timeline)
    where = f", {peak.place.line}" if peak.place.line else ""
    operation = peak.place.operation or "its start"
    yield Note(f"fake_step: the peak is in {peak.place.phase!r}, at {operation}{where}")
    if len(peak.peaks_B) > 1:
        each = ", ".join(f"rank {rank} {size_B / 1e9:.3g} GB" for rank, size_B in peak.peaks_B)
        yield Note(f"fake_step: this is rank {peak.rank} of {subject.step.ranks}; peaks of ranks: {each}")


def over_the_step(subject: Subject, timeline: Timeline) -> Iterator[Reading | Note]:
    """Return the live bytes over the step, and write them for a viewer, where the workload asks for it."""
    if subject.timeline:
        live = live_bytes(timeline)
        for kind, sizes_B in zip(KINDS, live.by_kind_B, strict=True):
            for size_B in sizes_B:
                yield Reading(f"live_memory/{kind}", "B", size_B, Origin.SIMULATED, "fake_step")
        for phase, point in live.phases.items():
            yield Reading(f"live_memory_phase/{phase}", "1", point, Origin.SIMULATED, "fake_step")
    if subject.snapshot is not None:
        names = "+".join(name for name, _ in subject.step.techniques) or "baseline"
        path = Path(subject.snapshot) / f"{names}-{digest(subject.step.described)[:8]}.pickle"
        try:
            write_snapshot(timeline, path)
        except OSError as error:
            raise Unavailable(f"snapshot={subject.snapshot}: {error.strerror}") from error
        yield Note(f"fake_step: open {path.absolute()} at pytorch.org/memory_viz")


def peak_of_rank(subject: Subject, reserved: bool = True, found: list[Pattern] | None = None) -> DryRun:
    """Return the dry run of one rank, on the simulated device, or on CUDA where this host has a GPU.

    `reserved` and `found`: see `dry_run`.
    """
    quick = subject.search != "thresholds"
    return dry_run(subject.step, device_of(subject), reserved=reserved, found=found, make_first_step=quick)


def device_of(subject: Subject) -> Device:
    """Return the simulated device, or CUDA where this host has a GPU."""
    if subject.simulated_device == "cuda" or device_here().type == "cuda":
        own_stream = subject.fsdp2_copies_on_own_stream
        return Device("cuda", False, False, subject.architecture, subject.allocator, own_stream)
    return Device("host", measured=subject.measurable)


def measured(subject: Subject, predicted_B: Mapping[str, float]) -> Iterator[Reading | Note]:
    """Run real steps, where the workload is small enough and this machine has the memory.

    `predicted_B`: the peaks by the other methods; the most careful of them decides whether memory suffices.
    """
    if not subject.measurable:
        return
    device = device_here()
    need_B = predicted_B.get("fake_step", predicted_B.get("states_16", 0.0))
    if (reason := shortage(need_B, device)) is not None:
        yield Note(f"measured: a step {reason}")
        return
    of_ranks = []
    for rank in ranks_to_run(subject.step):
        with among_ranks(subject.step, rank):
            of_ranks.append(measure_peak(subject.step, device, steady_steps=1))
    real_steps = max(of_ranks, key=lambda one: max(peak.live_B for peak in one.peaks))
    for peak in real_steps.peaks:
        yield Reading("peak_memory", "B", peak.live_B, Origin.MEASURED, "measured")
        yield from gpus_of(subject, peak.live_B, Origin.MEASURED, "measured")
        yield Reading("resident_memory", "B", peak.resident_B, Origin.MEASURED, "measured")
        if peak.reserved_B is not None:
            yield Reading("reserved_memory", "B", peak.reserved_B, Origin.MEASURED, "measured")
    if real_steps.in_fp32:
        yield Note(IN_FP32)
    if real_steps.slow:
        yield Note(f"measured: bf16 products that this CPU computes slowly: {', '.join(real_steps.slow)}")


def errors(
    subject: Subject, peaks: Mapping[str, float], beyond: Collection[str], blocks_B: float | None
) -> Iterator[Reading | Note]:
    """Return each method's relative error against the measured peak; below zero is an underestimate.

    On CUDA blocks are measured, so there `blocks_B` is the dry run's value. Methods in `beyond` are used
    outside of what they assume, and kept apart by the metric's name. A workload that is too large to be
    measured has the difference to its dry run instead.
    """
    if not subject.measurable and (of_dry_run := peaks.get("fake_step")):
        for method, peak_B in peaks.items():
            if method != "fake_step":
                metric = "difference_from_fake_step" + ("_beyond_assumptions" if method in beyond else "")
                yield Reading(metric, "1", peak_B / of_dry_run - 1, Origin.CALCULATED, method)
        return
    truth = peaks.get("measured")
    if not truth:
        return
    device = device_here().type
    if subject.simulated_device == "cuda" and device != "cuda":
        yield Note(f"relative_error: the simulated device is CUDA, and what was measured ran on the {device}")
        return
    if device == "cuda" and blocks_B is not None:
        peaks = {**peaks, "fake_step": blocks_B}
    for method, peak_B in peaks.items():
        if method != "measured":
            metric = "relative_error_beyond_assumptions" if method in beyond else "relative_error"
            yield Reading(metric, "1", peak_B / truth - 1, Origin.CALCULATED, method)
