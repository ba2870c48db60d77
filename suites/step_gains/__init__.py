"""The step_gains suite: what is a switch worth in a full training step at scale, by prediction?

The model of suites/training/step_time predicts a step with the switch and one without. Suite step_time has
how far off its ratios are on published pairs of steps, by kind of switch. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.records import Json, Note, Origin, Reading, WrongResult
from suites.step_gains.subject import Subject, Workload, asked_of, refuse_what_does_not_divide
from suites.training.step_time.questions.answers import predicted
from suites.training.step_time.questions.intervals import interval_of
from suites.training.step_time.rates.gpu import gpu_of
from suites.training.step_time.whole_step.seconds import StepSeconds

SECONDS_PER_HOUR = 3600.0

OTHER_PARTS = ("head", "bubble", "reduction", "update", "rest")
"""Of a step besides its layers."""


def build(workload: Json, seed: int) -> Subject:
    """Return the step without a switch; raises `Unavailable` for a layout that does not divide."""
    subject = Subject(Workload(**workload))
    refuse_what_does_not_divide(subject.workload)
    return subject


def check(subject: Subject) -> None:
    """Compare the step with its matmuls at the datasheet's rate; raises `WrongResult` for a faster one."""
    asked = asked_of(subject)
    shape, gpu = asked.setting.shape, asked.setting.gpu
    tokens = subject.workload.tokens / subject.workload.gpus
    lookup = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    matmuls = shape.active_parameters - lookup
    least_s = 6.0 * matmuls * tokens / gpu.peak_FLOP_per_s(asked.setting.precision)
    seconds = float(predicted(asked).seconds[0])
    if seconds < least_s:
        raise WrongResult(f"a step takes {seconds:.4g} s; its matmuls alone take {least_s:.4g} s at the peak")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require, and what the step is predicted with."""
    given = subject.workload
    gpu = gpu_of(given.device)
    assert gpu is not None
    return {
        "device": "cuda",
        "device_name": gpu.title,
        "gpus": str(given.gpus),
        "nodes": str(given.gpus // given.gpus_per_node),
        "ranks_per_node": str(given.gpus_per_node),
        "network_B_per_s": f"{given.network_B_per_s:g}",
        "seq_len": str(given.seq_len),
        "precision": given.precision,
        "attention": given.attention,
        "layout": ", ".join(f"{name} {value}" for name, value in given.layout.items()),
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return the step's seconds with their 90 % interval, rates, memory, cost, and shares of its parts.

    Whether it fits is a reading of its own: seconds are those of GPUs with as much memory as it takes.
    """
    given = subject.workload
    asked = asked_of(subject)
    steps = predicted(asked)
    seconds = float(steps.seconds[0])
    interval = interval_of(asked, float(steps.filled[0]))
    per_gpu = given.tokens / seconds / given.gpus
    values = [
        ("time", "s", seconds),
        ("time/low", "s", seconds * interval.low),
        ("time/high", "s", seconds * interval.high),
        ("tokens_per_s_per_device", "token/s", per_gpu),
        ("peak_memory", "B", float(steps.memory_B[0])),
        ("fits", "1", float(steps.fits[0])),
    ]
    if given.gpu_hour_USD is not None:
        per_token = given.gpu_hour_USD / SECONDS_PER_HOUR / per_gpu
        values.append(("cost_per_token", "USD/token", per_token))
        if given.run_tokens is not None:
            values.append(("run_cost", "USD", per_token * given.run_tokens))
    for metric, unit, value in values:
        yield Reading(metric, unit, value, Origin.CALCULATED)
    for name, share in shares(steps.parts).items():
        yield Reading(f"share/{name}", "1", share, Origin.CALCULATED)
    yield Note(f"interval: {interval.words()}")


def shares(parts: StepSeconds) -> Mapping[str, float]:
    """Return the share of each part in the step's seconds; communication as far as nothing hides it."""
    layers = {name: float(value[0]) for name, value in parts.layers._asdict().items()}
    others = {name: float(getattr(parts, name)[0]) for name in OTHER_PARTS}
    total = float(parts.total[0])
    return {name: value / total for name, value in {**layers, **others}.items()}


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
