"""The step_gains suite's subject: one training step at scale, and its question to the model of seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from harness.question import Question, question_of
from suites.step_gains.workload import Workload
from suites.training.of_question import seconds_subject_of, setting_of
from suites.training.step_time.gpu import nvlink_domain
from suites.training.step_time.prediction import PlannedSteps, planned
from suites.training.step_time.setting import RunFacts


@dataclass(frozen=True, slots=True)
class Subject:
    """A step to predict."""

    workload: Workload
    steps: PlannedSteps


def built(workload: Workload) -> Subject:
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


def question_about(workload: Workload) -> Question:
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
