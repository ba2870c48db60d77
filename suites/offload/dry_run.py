"""The estimate `fake_step`: a step on fake tensors as ranks on this host run it, by `training.dry_run`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache, partial

import torch

from harness.instruments.memory.dry_run.layer_repetition import timeline_of
from harness.instruments.memory.memory_timeline import Timeline
from harness.records import Unavailable
from suites.offload.subject import Subject
from suites.training.dry_run.dry_run import Device, among_ranks, is_sharded, trace
from suites.training.step import TrainingStep
from suites.training.techniques import build_step

DEVICE = Device("host", measured=True, gloo=True)
"""This host's operations, with their temporary memory and gloo's."""


def fake_step_B(subject: Subject) -> float:
    """Return peak bytes of a steady step on rank 0, which has the largest shard; batches count too.

    Depths of one variant share the traces of shallow models. Raises `Unavailable` where there is no dry
    run.
    """
    reason = why_not(subject)
    if reason is not None:
        raise Unavailable(reason)
    step = subject.step
    ranks = step.ranks if is_sharded(step) else 1
    timeline = timeline_of(partial(traced, step), subject.workload.num_hidden_layers, ranks)
    return float(timeline.peak().total_B)


def why_not(subject: Subject) -> str | None:
    """Return why such a step has no dry run; None where it has one."""
    if subject.managed is not None:
        return "fake tensors have one memory tier; managed memory has two"
    if subject.placement.engine not in ("ddp", "fsdp2"):
        return f"the engine {subject.placement.engine} has no dry run on several ranks here"
    if subject.step.no_dry_run is not None:
        return subject.step.no_dry_run
    if torch.cuda.is_available():
        return "the operations of this dry run are the CPU's, and a GPU's hold other bytes; use suite=memory"
    return None


def traced(step: TrainingStep, num_hidden_layers: int) -> Timeline:
    """Return the timeline of a step with that many layers."""
    workload = replace(step.given, num_hidden_layers=num_hidden_layers)
    return _trace(json.dumps(build_step(workload, step.techniques, step.seed).described))


@lru_cache(maxsize=16)
def _trace(described: str) -> Timeline:
    step = build_step(**json.loads(described))
    with among_ranks(step):
        return trace(step, DEVICE)
