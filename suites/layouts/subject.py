"""The layouts suite's workload as a question to the engines of suites/training."""

from __future__ import annotations

from typing import NamedTuple

from harness.question import Question, question_of
from suites.layouts.workload import Workload
from suites.training.layouts.search import LayoutSubject
from suites.training.of_question import subject_of


class Subject(NamedTuple):
    """A workload as a question that was checked."""

    workload: Workload
    checked: LayoutSubject


def built(workload: Workload) -> Subject:
    """Return the subject; raises `Unavailable` for a model without a shape, or what does not divide."""
    return Subject(workload, subject_of(question(workload), workload.architecture))


def question(workload: Workload) -> Question:
    """Return a workload as a question."""
    return question_of(
        config=workload.hf_config,
        devices=workload.gpus,
        memory_B=workload.usable_memory_B,
        gpus_per_node=workload.gpus_per_node,
        seq_len=workload.seq_len,
        micro_batch_size=workload.micro_batch_size,
        global_batch_size=workload.global_batch_size,
        search=workload.search,
        tp=workload.tp,
        pp=workload.pp,
        cp=workload.cp,
        ep=workload.ep,
        etp=workload.etp,
        virtual_stages=workload.virtual_stages,
        zero=workload.zero,
        shard_size=workload.shard_size,
        sequence_parallel=workload.sequence_parallel,
        precision=workload.precision,
        optimizer=workload.optimizer,
        recompute=workload.recompute,
        recompute_modules=workload.recompute_modules,
        dispatcher=workload.dispatcher,
        offload=() if workload.offload == "none" else (workload.offload,),
        fused_loss=workload.fused_loss,
        program=workload.program,
    )
