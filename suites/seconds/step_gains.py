"""The step_gains suite: what is a switch worth in a full training step at scale, by prediction?

The model of suites/training/step_time predicts a step with the switch and one without. Suite step_time has
how far off its ratios are on published pairs of steps, by kind of switch. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from harness.question import Question, question_of
from harness.records import Json, Note, Origin, Reading, WrongResult
from suites.seconds.workload import StepGainsWorkload
from suites.training.of_question import seconds_subject_of, setting_of
from suites.training.step_time.gpu import nvlink_domain
from suites.training.step_time.prediction import PlannedSteps, interval_of, planned, predicted
from suites.training.step_time.setting import RunFacts


@dataclass(frozen=True, slots=True)
class Subject:
    """A step to predict."""

    workload: StepGainsWorkload
    steps: PlannedSteps


def built(workload: StepGainsWorkload) -> Subject:
    """Return the subject; raises `Unavailable` for ranks, layers or a batch that do not divide."""
    question = question_about(workload)
    # Megatron's FSDP divides as its other layouts do, but the account has no stage beyond 1 of it
    zero = min(question.zero, 1) if question.program == "megatron" else question.zero
    checked = seconds_subject_of(msgspec.structs.replace(question, zero=zero))
    setting = setting_of(checked, RunFacts(tensor_overlap=workload.tensor_overlap))
    layout = checked.layout._replace(zero=np.array([question.zero]))
    return Subject(workload, planned(setting, layout, checked.batch))


def changed(subject: Subject, **fields: Any) -> Subject:
    """Return the subject with other fields of its workload; raises `Unavailable` where it does not divide."""
    return built(replace(subject.workload, **fields))


def question_about(workload: StepGainsWorkload) -> Question:
    """Return the step as a question; Megatron-LM trains as NeMo's recipes have it."""
    layout = {"zero": 1, "recompute": "none", **workload.layout}
    return question_of(
        config=workload.sizes,
        devices=workload.gpus,
        device=workload.device,
        gpus_per_node=nvlink_domain(workload.device, workload.gpus_per_node),
        network_B_per_s=workload.network_B_per_s,
        seq_len=workload.seq_len,
        global_batch_size=workload.global_batch_size,
        precision=workload.precision,
        gradients="bf16",
        master_remainders=True,
        fp8_parameters=True,
        attention="explicit" if workload.attention == "explicit" else "flash",
        program=workload.program,
        sequence_parallel=True,
        **layout,
    )


SECONDS_PER_HOUR = 3600.0


def build(workload: Json, seed: int) -> Subject:
    """Return the step without a switch; raises `Unavailable` for a layout that does not divide."""
    return built(StepGainsWorkload(**workload))


def check(subject: Subject) -> None:
    """Compare the step with its matmuls at the datasheet's rate; raises `WrongResult` for a faster one."""
    setting = subject.steps.setting
    shape, gpu = setting.shape, setting.gpu
    tokens = subject.workload.tokens / subject.workload.gpus
    lookup = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    matmuls = shape.active_parameters - lookup
    least_s = 6.0 * matmuls * tokens / gpu.peak_FLOP_per_s(setting.precision)
    seconds = float(predicted(subject.steps).seconds[0])
    if seconds < least_s:
        raise WrongResult(f"a step takes {seconds:.4g} s; its matmuls alone take {least_s:.4g} s at the peak")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may require, and what the step is predicted with."""
    given = subject.workload
    return {
        "device": "cuda",
        "device_name": subject.steps.setting.gpu.title,
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
    steps = predicted(subject.steps)
    seconds = float(steps.seconds[0])
    interval = interval_of(subject.steps, float(steps.filled[0]))
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
    total_s = float(steps.parts.total[0])
    for name, part_s in steps.parts.by_name(0).items():  # communication as far as nothing hides it
        yield Reading(f"share/{name}", "1", part_s / total_s, Origin.CALCULATED)
    yield Note(f"interval: {interval.words()}")


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
