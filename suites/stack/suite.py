"""The stack suite: what techniques of a training step are worth alone, together, and on top of each other.

The baseline is eager PyTorch in fp32 with explicit attention, its batches made in the step. Variants are all
combinations of six techniques. Each trains on the same sequences, so tokens/s are those of equal work. Cells
of one workload are timed together; see harness/sweep/interleaved.py for the order of the calls
below.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from harness.instruments.timing.stopwatch import stopwatch
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.stack.session import (
    Session,
    Subject,
    baseline_updates,
    check_losses,
    make_batch,
    shared_tensors,
    stop_worker,
)
from suites.stack.workload import Workload
from suites.training.techniques import Techniques, combined


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for a size chosen for a GPU, and for odd head sizes."""
    given = Workload(**workload)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.device == "cuda" and device.type != "cuda":
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    if given.shape.head_size % 2:
        raise Unavailable(f"rotary positions need an even head size, not {given.shape.head_size}")
    return Subject(given, seed, device)


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of the bf16 matrix products in one sample; 0 where a GPU computes them."""
    narrow = subject.precision == "bf16" and subject.device.type == "cpu"
    return subject.workload.flop if narrow else 0.0


def apply_techniques(subject: Subject, techniques: Techniques) -> Subject:
    """Return the subject with further techniques of its step; raises `Unavailable` where they do not fit."""
    changed = replace(subject, techniques=combined(subject.techniques, techniques))
    changed.step_of(1)
    return changed


def prepare(subject: Subject) -> Session:
    """Return the variant's session; its trainer is built by `check`."""
    return Session(subject)


def check(session: Session) -> None:
    """Compare the losses and gradients of the first updates with the baseline's; raises `WrongResult`."""
    check_losses(session)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about speed may name."""
    subject = session.subject
    given, device = subject.workload, subject.device
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "precision": subject.precision,
        "attention": subject.step_of(1).features.attention,
        "seq_len": str(given.seq_len),
        "micro_batch_size": str(given.micro_batch_size * session.times),
        "sequences": str(given.sequences),
        "loading": "ahead" if subject.loads_ahead else "in the step",
        "threads": str(torch.get_num_threads()),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Yield what is read once: counts by formula, the check's error, peak memory, time to load a batch."""
    subject = session.subject
    given = subject.workload
    yield Reading("flops", "1", given.flop, Origin.CALCULATED)
    yield Reading("tokens_per_step", "1", given.tokens, Origin.CALCULATED)
    yield Reading("parameters", "1", given.shape.parameters, Origin.CALCULATED)
    yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "baseline")
    yield Reading("peak_memory", "B", session.peak_B, Origin.MEASURED)
    yield Reading("sequences_at_once", "1", given.micro_batch_size * session.times, Origin.MEASURED)
    begin_s = time.perf_counter()
    make_batch(given.vocab_size, (given.sequences, given.seq_len), subject.seed, 0)
    yield Reading("loading_time", "s", time.perf_counter() - begin_s, Origin.MEASURED)
    if any(name == "compile" for name, _ in subject.step_of(1).techniques):
        method = "cached" if session.compiled_from_cache else "cold"
        yield Reading("first_pass", "s", session.first_call_s, Origin.MEASURED, method)
    for times, peak_B in session.tried.items():
        yield Note(f"{given.micro_batch_size * times} sequences at once take {peak_B / 1e6:.0f} MB at peak")
    session.stopwatch = stopwatch(session.trainer.step, subject.device)


def sample(session: Session) -> Iterator[Reading | Note]:
    """Time one window of updates: seconds per update, the loading of its batch included."""
    if session.stopwatch is None:
        raise RuntimeError("sample() is called before read_once()")
    yield from session.stopwatch.window()


def close(session: Session) -> None:
    """Release the trainer, what variants share, and the process that loads."""
    session.release()
    baseline_updates.cache_clear()
    shared_tensors.cache_clear()
    stop_worker()
