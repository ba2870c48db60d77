"""A full training step on fake tensors: the peak of live bytes by kind, without allocating them.

Uniform layers are not run one by one: a few are, and each site of the step is extrapolated to all
(`memory.layer_extrapolation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.instruments.memory.cpu_op_workspace import host_workspace
from harness.instruments.memory.fake_tensors import StorageLog, logged
from harness.instruments.memory.layer_extrapolation import extrapolate_layers, layers_to_walk
from harness.instruments.memory.memory_timeline import KINDS, OpSite, Snapshot
from harness.records import Unavailable
from suites.training.simulated_cuda import (
    BLOCK_B,
    CUBLAS_HANDLES,
    CUBLAS_WORKSPACE_B,
    as_on_cuda,
    cuda_operations,
    cuda_workspace,
)
from suites.training.step import TrainingStep
from suites.training.trainer import CPU, Trainer, live_gradients

COPIED_BY_GLOO = {"_allgather_base_": 0, "_reduce_scatter_base_": 1}
"""Index of the argument that gloo copies during these collectives, as its allocations show."""


class Device(NamedTuple):
    """The device whose operations are traced.

    `name`: "host", this machine's CPU, or "cuda". `measured`: the temporary memory of CPU operations is
    measured on this host, with its threads, so that the peak can be compared with a measured one. `gloo`:
    ranks are real ones over gloo, whose copies count.
    """

    name: str = "host"
    measured: bool = False
    gloo: bool = False


HOST = Device()


class DryRun(NamedTuple):
    """The peak of the second step, the first that is steady; bytes by kind sum to `peak_B`."""

    peak_B: int
    by_kind_B: dict[str, int]
    place: OpSite  # what was running


def dry_run(step: TrainingStep, device: Device = HOST, full: bool = False) -> DryRun:
    """Return the peak of one rank. `full`: run every layer, uniform or not.

    A sharded step is rank 0 of a fake process group of as many ranks as it says. Raises `Unavailable` where
    fake tensors cannot show the step.
    """
    if step.no_dry_run is not None:
        raise Unavailable(step.no_dry_run)
    with among_ranks(step):
        moments = (None if full else _extrapolated(step, device)) or trace(step, device)
    place, moment = max(moments.items(), key=lambda item: item[1].total_B)
    return DryRun(moment.total_B, dict(zip(KINDS, moment.by_kind_B, strict=True)), place)


def among_ranks(step: TrainingStep) -> AbstractContextManager[None]:
    """Return the fake process group of a sharded step; no group for others, or inside one.

    Raises `Unavailable` on a real rank, which cannot represent others.
    """
    if not is_sharded(step):
        return nullcontext()
    if not dist.is_initialized():
        return fake_process_group(step.ranks)
    if dist.get_backend() != "fake":
        raise Unavailable("this process is a rank itself and cannot simulate others")
    return nullcontext()


def is_sharded(step: TrainingStep) -> bool:
    """Return whether ranks have different shares, so that the process group matters; DDP's have the same."""
    return step.features.sharding not in ("none", "ddp")


def _extrapolated(step: TrainingStep, device: Device) -> dict[OpSite, Snapshot] | None:
    """Return what a full trace would find, from two short ones; None where layers are few or not uniform."""
    depth = step.workload.num_hidden_layers
    fewer = layers_to_walk(depth, step.ranks if is_sharded(step) else 1)
    if fewer is None or not step.layers_alike:
        return None
    return extrapolate_layers(trace(step, device, fewer), trace(step, device, fewer + 1), fewer, depth)


def trace(
    step: TrainingStep,
    device: Device = HOST,
    num_hidden_layers: int | None = None,
) -> dict[OpSite, Snapshot]:
    """Return the second step's largest snapshot at each site, with that many layers.

    The first step is there for the optimizer's state. Where gradients alone make it, zeros take the place of
    a forward and backward pass, unless the second step then gives gradients to fewer parameters.
    """
    moments, same_gradients = _second_step(step, device, num_hidden_layers, full_first_step=False)
    if same_gradients:
        return moments
    return _second_step(step, device, num_hidden_layers, full_first_step=True)[0]


def _second_step(
    step: TrainingStep, device: Device, num_hidden_layers: int | None, full_first_step: bool
) -> tuple[dict[OpSite, Snapshot], bool]:
    """Return as `trace`, and whether the first step is as it should be: full, or with as many gradients."""
    program = program_of(device)
    log = program.make_log()
    with logged(log, program.random_states), program.operations():
        log.reserve(program.reserved_B)
        trainer = Trainer(program.prepare(step), CPU, num_hidden_layers)
        for tensor in (*trainer.model.parameters(), *trainer.model.buffers()):
            log.label(tensor, "parameters")
        gradients: list[int] = []  # how many, in each step

        def mark(phase: str) -> None:
            for gradient in live_gradients(trainer.model):
                log.label(gradient, "gradients")
            for tensor, kind in trainer.optimizer.tensors_by_kind():
                log.label(tensor, kind)
            log.enter_phase(phase)
            if phase == "optimizer":
                gradients.append(len(live_gradients(trainer.model)))

        trainer.mark = mark
        full = full_first_step or step.keep_gradients  # whose zeros would hide which parameters get none
        full = full or not trainer.optimizer.set_gradients_to_zeros()
        if full:
            trainer.train_step()
        else:
            trainer.update()
        for tensor in trainer.optimizer.state_tensors():
            log.label(tensor, "optimizer_states")
        since = len(log.ledger.events)
        trainer.train_step()
    first, second = gradients
    return log.ledger.largest(since), full or first == second


class Program(NamedTuple):
    """Whose operations are traced, and how their bytes are counted."""

    make_log: Callable[[], StorageLog]
    operations: Callable[[], AbstractContextManager[Any]]
    prepare: Callable[[TrainingStep], TrainingStep]
    reserved_B: int  # kept by libraries all the time
    random_states: bool  # saved ones are in the memory that is counted


def program_of(device: Device) -> Program:
    """Return this host's operations, or CUDA's."""
    if device.name == "cuda":
        reserved_B = CUBLAS_HANDLES * CUBLAS_WORKSPACE_B
        log = partial(StorageLog, cuda_workspace, round_to_B=BLOCK_B)
        return Program(log, cuda_operations, as_on_cuda, reserved_B, random_states=False)
    workspace = gloo_workspace if device.gloo else host_workspace
    log = partial(StorageLog, workspace, ask_host=device.measured)
    return Program(log, nullcontext, lambda same: same, reserved_B=0, random_states=True)


def gloo_workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return an operation's temporary bytes beyond its results, on the CPU and between ranks over gloo."""
    if operation.namespace == "c10d" and operation._opname in COPIED_BY_GLOO:
        return int(arguments[COPIED_BY_GLOO[operation._opname]].nbytes)
    return host_workspace(operation, arguments, result)


def device_here() -> torch.device:
    """Return CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
