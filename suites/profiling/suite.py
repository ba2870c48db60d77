"""The profiling suite (Chopper): where a training step's time goes, by recorded traces of all ranks.

Each variant injects a known loss into the same step: the traces must recover it and name it. Steps with and
without it take turns in pairs, in random order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch

from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_traces
from harness.records import Json, Note, Origin, Reading, Unavailable, digest
from suites.profiling.measure import (
    TracedElsewhere,
    calibrated,
    counted_readings,
    factor_readings,
    in_a_sentence,
    injected_s,
    model_FLOP,
    naming_readings,
    plain_times,
    readings_elsewhere,
    recorded,
    recovery_readings,
    state_readings,
)
from suites.profiling.ranks import RecordedRanks
from suites.profiling.recorder import Subject, baseline
from suites.profiling.workload import Workload
from suites.training.correctness import check_on_ranks
from suites.training.shared_trainers import shared
from suites.training.techniques import Techniques, build_step
from suites.training.techniques import apply_techniques as with_techniques


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: the step with nothing injected."""
    given = Workload(**workload)
    if given.device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    if given.parallelism == "none" and given.dp_size > 1:
        raise Unavailable(
            f"parallelism=none is for one rank, and dp_size={given.dp_size}; allowed: ddp, fsdp2"
        )
    return baseline(given, seed)


def apply_techniques(subject: Subject, techniques: Techniques) -> Subject:
    """Return the subject with the techniques of an optimization's list."""
    return replace(subject, step=with_techniques(subject.step, techniques))


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of bf16 matrix products in a sample; 0 in fp32 and on GPUs."""
    workload = subject.workload
    if workload.precision == "fp32" or torch.cuda.is_available():
        return 0.0
    recordings = 1 + workload.recordings  # one without the profiler
    return 2 * recordings * (workload.recorded_pairs + 1) * workload.dp_size * model_FLOP(workload)


@dataclass(slots=True)
class RunningStep:
    """A variant's step on the ranks that all variants of its workload share; `key` names it there.

    `calibrated`: see `measure.calibrated`. `described`: whether a note has a recording's sentence.
    """

    subject: Subject
    ranks: RecordedRanks
    key: str
    calibrated: float = 0.0
    order: Random = field(default_factory=Random)
    described: bool = False


Session = RunningStep | TracedElsewhere


def prepare(subject: Subject) -> Session:
    """Start the ranks if no variant has, make the step on them, and calibrate what is injected.

    A trace of a run elsewhere is read; raises TraceError.
    """
    if (trace := subject.workload.trace) is not None:
        return TracedElsewhere(subject, breakdown(read_traces(Path(trace))))
    ranks = shared(RecordedRanks, subject.workload)
    # Variants that inject into the same step share it on the ranks, by this key.
    session = RunningStep(subject, ranks, digest(subject.step.described), order=Random(subject.seed))
    try:
        ranks.enter(session.key, subject.step)
        session.calibrated = calibrated(ranks, session.key, subject.injection)
    except BaseException:
        close(session)
        raise
    return session


def check(session: Session) -> None:
    """Compare the losses and gradients of the ranks with plain PyTorch's, once for each step.

    On GPUs only one layer is compared: two more models of the step's size would not fit into memory. Raises
    `WrongResult`.
    """
    if isinstance(session, TracedElsewhere):
        return
    ranks, step = session.ranks, session.subject.step
    if session.key in ranks.checked:
        return
    device = torch.device("cuda" if ranks.backend == "nccl" else "cpu")
    if device.type == "cuda":
        one_layer = replace(step.given, num_hidden_layers=1)
        step = build_step(one_layer, step.described["techniques"], step.seed)
    ranks.call("make", key="checked", step=step.described)
    check_on_ranks(step, ranks.call, "checked", session.subject.workload.shared_techniques, device)
    ranks.call("drop", key="checked")
    ranks.checked.add(session.key)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    if isinstance(session, TracedElsewhere):
        traced = session.found.ranks[0].activity.trace
        return {
            "device": "cuda" if traced.has_device else "cpu",
            "device_name": ", ".join(dict.fromkeys(traced.devices)) or "not in the trace",
            "ranks": str(traced.world_size),
            "recorded": "elsewhere",
        }
    workload = session.subject.workload
    cuda = session.ranks.backend == "nccl"
    return {
        "device": "cuda" if cuda else "cpu",
        "device_name": torch.cuda.get_device_name(0) if cuda else "CPU",
        "ranks": str(workload.dp_size),
        "parallelism": workload.parallelism,
        "precision": workload.precision,
        "network": "emulated" if workload.linked else "none",
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Read the sizes of the step, or all that a trace of a run elsewhere has."""
    if isinstance(session, TracedElsewhere):
        yield from readings_elsewhere(session)
        return
    workload = session.subject.workload
    yield Reading(
        "tokens_per_step", "1", workload.dp_size * workload.sequences * workload.seq_len, Origin.CALCULATED
    )


def timed(session: Session) -> bool:
    """Return whether steps are run: not those of a trace."""
    return isinstance(session, RunningStep)


def sample(session: Session) -> Iterator[Reading | Note]:
    """Read recordings, and the time of steps without the profiler."""
    assert isinstance(session, RunningStep)
    subject, ranks, key = session.subject, session.ranks, session.key
    injection = subject.injection
    origin = Origin.MEASURED if injection is None else Origin.EMULATED
    plain = plain_times(ranks, key, subject, session.order)
    yield Reading("time", "s", plain.injected_s, origin)
    yield Reading("time_rise", "s", plain.rise_s, origin)
    if injection is not None and injection.kind == "cpu_quota":
        yield Reading("counted_of_held_back", "1", session.calibrated, Origin.MEASURED)
    for _ in range(subject.workload.recordings):
        recording = recorded(ranks, key, subject, session.order)
        if injection is None and not session.described:
            session.described = True
            yield Note(f"First recording: {in_a_sentence(recording.found)}")
        yield from state_readings(recording.found, origin, slice(1, None, 2))
        yield from factor_readings(recording.found, origin)
        yield from counted_readings(recording)
        yield Reading("profiled_time", "s", recording.slowest_s, origin)
        yield Reading("profiler_overhead", "1", recording.slowest_s / plain.injected_s - 1, origin)
        yield from naming_readings(recording, injection)
        if injection is not None:
            truth_s = injected_s(recording, injection, session.calibrated)
            yield from recovery_readings(recording, injection, truth_s)


def close(session: Session) -> None:
    """Leave the ranks; with the last variant they end."""
    if isinstance(session, RunningStep):
        session.ranks.leave(session.key)
