"""A whole training step on fake tensors: the peak of live bytes and what they are for, without the memory.

`fake_step` is the method of that name; alike layers are not walked one by one (`instruments.short_walk`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from harness.instruments.memory.cpu_op_workspace import host_workspace
from harness.instruments.memory.fake_tensors import StorageLog, logged
from harness.instruments.memory.layer_extrapolation import extrapolate_layers, layers_to_walk
from harness.instruments.memory.memory_timeline import KINDS, OpSite, Snapshot
from harness.records import Unavailable
from suites.memory.cuda_program import (
    BLOCK_B,
    CUBLAS_HANDLES,
    CUBLAS_WORKSPACE_B,
    as_on_cuda,
    cuda_operations,
    cuda_workspace,
)
from suites.memory.measure import device_here
from suites.memory.step import TrainingStep
from suites.memory.training import held_gradients, set_up, state_tensors, tensors_by_kind, train_once


class FakePeak(NamedTuple):
    """The peak of the second step, the first that is steady; bytes by kind sum to `peak_B`."""

    peak_B: int
    by_kind_B: dict[str, int]
    place: OpSite  # what was running


def fake_step(step: TrainingStep, full: bool = False) -> FakePeak:
    """The peak of one rank. `full`: walk every layer, whether or not they are alike.

    Raises `Unavailable` where the step cannot honestly be walked.
    """
    if step.walkable is not None:
        raise Unavailable(step.walkable)
    moments = (None if full else _short(step)) or walk(step, step.workload.num_hidden_layers)
    place, moment = max(moments.items(), key=lambda item: item[1].total_B)
    return FakePeak(moment.total_B, dict(zip(KINDS, moment.by_kind_B, strict=True)), place)


def _short(step: TrainingStep) -> dict[OpSite, Snapshot] | None:
    """What a full walk would find, by the short way; None where layers are few or not alike."""
    num_hidden_layers = step.workload.num_hidden_layers
    fewer = layers_to_walk(num_hidden_layers, step.ranks)
    if fewer is None or not step.layers_alike:
        return None
    return extrapolate_layers(walk(step, fewer), walk(step, fewer + 1), fewer, num_hidden_layers)


def walk(step: TrainingStep, num_hidden_layers: int) -> dict[OpSite, Snapshot]:
    """The second step with `layers` layers: at each place the moment of most live bytes."""
    program = program_of(step)
    log = program.make_log()
    with logged(log, program.random_states), program.operations():
        log.reserve(program.reserved_B)
        training = set_up(program.prepare(step), torch.device("cpu"), num_hidden_layers)
        for tensor in (*training.model.parameters(), *training.model.buffers()):
            log.label(tensor, "parameters")

        def mark(phase: str) -> None:
            for gradient in held_gradients(training.model):
                log.label(gradient, "gradients")
            for tensor, kind in tensors_by_kind(training.optimizer):
                log.label(tensor, kind)
            log.enter_phase(phase)

        train_once(training, mark)
        for tensor in state_tensors(training.optimizer):
            log.label(tensor, "optimizer_states")
        since = len(log.ledger.events)
        train_once(training, mark)
    return log.ledger.largest(since)


class Program(NamedTuple):
    """Whose operations are walked."""

    make_log: Callable[[], StorageLog]
    operations: Callable[[], AbstractContextManager[Any]]
    prepare: Callable[[TrainingStep], TrainingStep]
    reserved_B: int  # held all the time by libraries
    random_states: bool  # saved ones lie in the memory that is counted


def program_of(step: TrainingStep) -> Program:
    """This host's operations, or CUDA's where the workload says so or this host has a GPU."""
    if step.workload.program == "cuda" or device_here().type == "cuda":
        reserved_B = CUBLAS_HANDLES * CUBLAS_WORKSPACE_B
        log = partial(StorageLog, cuda_workspace, round_to_B=BLOCK_B)
        return Program(log, cuda_operations, as_on_cuda, reserved_B, random_states=False)
    log = partial(StorageLog, host_workspace, ask_host=step.workload.train)
    return Program(log, nullcontext, lambda same: same, reserved_B=0, random_states=True)
