"""A training step on fake tensors: the most bytes that one rank's device holds at once, without the memory.

`suites.offload.memory_estimates` has it as `fake_step`. The step is the variant's own. Only DDP gives way to
the plain model, for its reducer is written in C++. Its gradients are views into its buckets: the same bytes,
and they stay from step to step, as the plain step's gradients do here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.instruments.memory.cpu_op_workspace import host_workspace
from harness.instruments.memory.fake_tensors import StorageLog, logged
from harness.instruments.memory.layer_extrapolation import extrapolate_layers, layers_to_walk
from harness.instruments.memory.memory_timeline import OpSite, Snapshot
from harness.records import Unavailable
from suites.offload.subject import Subject
from suites.training.trainer import Trainer

STEPS = 2
"""The second is the first with all states."""

COPIED_BY_GLOO = {"_allgather_base_": 0, "_reduce_scatter_base_": 1}
"""Which argument of these collectives gloo holds once more meanwhile, as its allocations show."""


def fake_step_B(subject: Subject) -> float:
    """Return peak bytes of a steady step on rank 0, which holds the largest shard; batches count too.

    Layers are alike: few are run, and each place of the step is extrapolated to all of them. The CPU's
    operations hold bytes of their own per thread: this host is asked, with as many threads as torch has now.
    Raises `Unavailable` where there is no dry run.
    """
    reason = why_not(subject)
    if reason is not None:
        raise Unavailable(reason)
    snapshots = _extrapolated(subject) or dry_run(subject, subject.workload.num_hidden_layers)
    return float(max(one.total_B for one in snapshots.values()))


def why_not(subject: Subject) -> str | None:
    """Return why such a step has no dry run; None where it has one."""
    if subject.managed is not None:
        return "fake tensors know one tier of memory: managed memory has two"
    if subject.placement.engine not in ("ddp", "fsdp2"):
        return f"the engine {subject.placement.engine} has no dry run"
    if subject.step.no_dry_run is not None:
        return subject.step.no_dry_run
    if torch.cuda.is_available():
        return "the operations of this dry run are the CPU's, and a GPU's hold other bytes; use suite=memory"
    if _is_sharded(subject) and dist.is_initialized():
        return "this process is a rank itself, and cannot stand for others"
    return None


def _is_sharded(subject: Subject) -> bool:
    return subject.placement.engine == "fsdp2"


def _extrapolated(subject: Subject) -> Mapping[OpSite, Snapshot] | None:
    """What a dry run of all layers would find; None where there are too few to gain by it."""
    layers = subject.workload.num_hidden_layers
    fewer = layers_to_walk(layers, subject.workload.dp_size if _is_sharded(subject) else 1)
    if fewer is None:
        return None
    return extrapolate_layers(dry_run(subject, fewer), dry_run(subject, fewer + 1), fewer, layers)


def dry_run(subject: Subject, num_hidden_layers: int) -> Mapping[OpSite, Snapshot]:
    """Run the steady step, layer by layer; return at each place the moment of most live bytes."""
    log, workload = StorageLog(workspace, ask_host=True), subject.workload
    ranks = fake_process_group(workload.dp_size) if _is_sharded(subject) else nullcontext()
    size = (workload.micro_batch_size, workload.seq_len)
    with ranks, logged(log):
        trainer = Trainer(subject.step, num_hidden_layers=num_hidden_layers)
        trainer.mark = log.enter_phase
        for _ in range(STEPS):
            log.enter_phase("batch")
            since = len(log.ledger.events)
            trainer.train_step([(torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))])
    return log.ledger.largest(since)


def workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return what an operation holds besides its results, on the CPU and between ranks that meet by gloo."""
    if operation.namespace == "c10d" and operation._opname in COPIED_BY_GLOO:
        return int(arguments[COPIED_BY_GLOO[operation._opname]].nbytes)
    return host_workspace(operation, arguments, result)
