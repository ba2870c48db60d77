"""The memory suite: how much device memory one rank's training step takes, by every method there is.

The baseline is plain PyTorch: fp32, explicit attention, one device. A subject is a description of a step
(`suites.memory.step`), so nothing is allocated until a method asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import psutil
import torch

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.memory import huggingface
from suites.memory.against_baseline import check_losses
from suites.memory.formulas import Counts, count, estimates, gpus
from suites.memory.measure import device_here, measure_peak
from suites.memory.step import TrainingStep, Workload
from suites.memory.thresholds import thresholds
from suites.memory.training import build_model
from suites.memory.walk import FakePeak, fake_step

IN_FP32 = (
    "measured: this CPU is slow at bf16, so matrix products were computed in fp32, with the allocations of "
    "bf16; the resident memory includes 12 MB for that"
)

FREE_SHARE = 0.9
"""Of the memory that is free: a real step that fake_step says needs more is not begun."""


def build(workload: Json, seed: int) -> TrainingStep:
    """The baseline's training step."""
    given = Workload(**workload)
    step = TrainingStep(given, seed, given=given)
    return huggingface.adopt(step) if step.workload.hf_config is not None else step


def check(subject: TrainingStep) -> None:
    """Hold the step's losses against the baseline's; raises `WrongResult`."""
    check_losses(subject)


def conditions(subject: TrainingStep) -> Mapping[str, str]:
    """What a claim about memory may ask after."""
    workload, features = subject.workload, subject.features
    device = device_here().type if workload.program == "host" else workload.program
    return {
        "device": device,
        "optimizer": workload.optimizer,
        "precision": features.precision,
        "attention": features.attention,
        "recompute": features.recompute,
        "sharding": features.sharding,
        "ranks": str(subject.ranks),
        "batch": str(workload.micro_batch_size * workload.gradient_accumulation_steps),
        "seq_len": str(workload.seq_len),
        "held": "; ".join(subject.notes),
    }


def sample(subject: TrainingStep) -> Iterator[Reading | Note]:
    """The peak by every method, what it is made of, and how far each method is from what was measured."""
    counts = count_model(subject)
    yield Reading("parameters", "1", counts.parameters, Origin.CALCULATED)
    yield Reading("tokens_per_step", "1", tokens_per_step(subject), Origin.CALCULATED)
    peaks: dict[str, float] = {}
    for reading in chain(formulas(subject, counts), walked(subject), measured(subject, peaks)):
        yield reading
        if isinstance(reading, Reading) and reading.metric == "peak_memory":
            peaks[reading.method] = max(reading.value, peaks.get(reading.method, 0.0))
    beyond = {one.method for one in estimates(subject, counts) if one.reason}
    yield from errors(subject, peaks, beyond)
    if not subject.workload.train:
        yield from thresholds(subject, counts, peak_of_rank)


def tokens_per_step(subject: TrainingStep) -> int:
    """Tokens that all ranks together train on in one step; tensor-parallel ranks share theirs."""
    workload = subject.workload
    own = workload.micro_batch_size * workload.gradient_accumulation_steps * workload.seq_len
    return own if subject.features.sharding == "tensor" else own * subject.ranks


def close(subject: TrainingStep) -> None:
    """A description holds nothing."""


def count_model(subject: TrainingStep) -> Counts:
    """The model's counts, had without its weights."""
    with torch.device("meta"):
        return count(build_model(subject), subject.workload)


def formulas(subject: TrainingStep, counts: Counts) -> Iterator[Reading | Note]:
    """What the closed formulas say; a formula that does not speak of such a step says why."""
    for estimate in estimates(subject, counts):
        if estimate.peak_B is None:
            yield Note(f"{estimate.method}: {estimate.reason}")
            continue
        yield from peak_and_gpus(subject, estimate.peak_B, Origin.CALCULATED, estimate.method)
        if estimate.reason:
            yield Note(f"{estimate.method}: {estimate.reason}")


def peak_and_gpus(subject: TrainingStep, peak_B: float, origin: Origin, method: str) -> Iterator[Reading]:
    """A peak, and for a whole model on one device how many devices it would fill."""
    yield Reading("peak_memory", "B", peak_B, origin, method)
    if subject.ranks == 1:
        devices = gpus(peak_B, subject.workload.device_memory_B)
        yield Reading("gpus", "1", devices, origin, method)


def walked(subject: TrainingStep) -> Iterator[Reading | Note]:
    """The peak of a step on fake tensors, whole and by kind."""
    try:
        peak = peak_of_rank(subject)
    except Unavailable as reason:
        yield Note(f"fake_step: {reason}")
        return
    yield from peak_and_gpus(subject, peak.peak_B, Origin.SIMULATED, "fake_step")
    for kind, size_B in peak.by_kind_B.items():
        yield Reading(f"peak_memory/{kind}", "B", size_B, Origin.SIMULATED, "fake_step")
    yield Note(f"fake_step: the peak is in {peak.place.phase!r}, at {peak.place.operation or 'its start'}")


def peak_of_rank(subject: TrainingStep) -> FakePeak:
    """`fake_step` of one rank, among as many as the step says."""
    with among_ranks(subject):
        return fake_step(subject)


def among_ranks(subject: TrainingStep) -> AbstractContextManager[None]:
    """The fake process group that a sharded step is one rank of; nothing for any other step."""
    return nullcontext() if subject.features.sharding == "none" else fake_process_group(subject.ranks)


def measured(subject: TrainingStep, foretold_B: Mapping[str, float]) -> Iterator[Reading | Note]:
    """Real steps, where the workload is small enough to be trained and this machine has the memory.

    `foretold_B` is what the other methods said: the most careful that speaks is believed about the memory.
    """
    if not subject.workload.train:
        return
    device = device_here()
    free_B = torch.cuda.mem_get_info()[0] if device.type == "cuda" else psutil.virtual_memory().available
    need_B = foretold_B.get("fake_step", foretold_B.get("states_16", 0.0))
    if need_B > FREE_SHARE * free_B:
        yield Note(f"measured: a step takes some {need_B / 1e9:.1f} GB, and {free_B / 1e9:.1f} GB are free")
        return
    with among_ranks(subject):
        found = measure_peak(subject, device)
    for peak in found.peaks:
        yield from peak_and_gpus(subject, peak.live_B, Origin.MEASURED, "measured")
        yield Reading("resident_memory", "B", peak.resident_B, Origin.MEASURED, "measured")
        if peak.reserved_B is not None:
            yield Reading("reserved_memory", "B", peak.reserved_B, Origin.MEASURED, "measured")
    if found.in_fp32:
        yield Note(IN_FP32)
    if found.slow:
        yield Note(f"measured: bf16 products that this CPU computes slowly: {', '.join(found.slow)}")


def errors(
    subject: TrainingStep, peaks: Mapping[str, float], beyond: Collection[str] = ()
) -> Iterator[Reading | Note]:
    """How far each method's peak is from the measured one, relative; below zero is an underestimate.

    Methods in `beyond` are used outside of what they assume, and kept apart by the metric's name.
    None where the methods speak of CUDA's step and the measured one was another device's.
    """
    truth = peaks.get("measured")
    if not truth:
        return
    device = device_here().type
    if subject.workload.program == "cuda" and device != "cuda":
        yield Note(f"relative_error: the program is CUDA's, and what was measured ran on the {device}")
        return
    for method, peak_B in peaks.items():
        if method != "measured":
            metric = "relative_error_beyond_assumptions" if method in beyond else "relative_error"
            yield Reading(metric, "1", peak_B / truth - 1, Origin.CALCULATED, method)
