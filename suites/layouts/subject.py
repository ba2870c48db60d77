"""The layouts suite's workload as a question to the engines of suites/training."""

from __future__ import annotations

from typing import NamedTuple

from harness.question import Question, question_of
from harness.records import Unavailable
from suites.layouts.workload import Workload
from suites.training.of_question import LayoutSubject, seconds_subject_of, subject_of


class Subject(NamedTuple):
    """A workload as a question that was checked."""

    workload: Workload
    checked: LayoutSubject


def built(workload: Workload) -> Subject:
    """Return the subject; raises `Unavailable` for a model without a shape, or what does not divide."""
    subject = seconds_subject_of if workload.seconds else subject_of
    checked = subject(question(workload), workload.architecture)
    if workload.seconds and (workload.recompute_modules or workload.dispatcher != "alltoall"):
        raise Unavailable("recompute_modules, dispatcher: their seconds are not modelled; leave them out")
    return Subject(workload, checked)


def question(workload: Workload) -> Question:
    """Return a workload as a question."""
    return question_of(
        config=workload.hf_config,
        devices=workload.gpus,
        device=workload.device,
        memory_B=workload.usable_memory_B,
        gpus_per_node=workload.gpus_per_node,
        network_B_per_s=workload.network_B_per_s,
        network=workload.network,
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
        compile=workload.compiled,
        fused_loss=workload.fused_loss,
        program=workload.program,
    )
