"""A training step on fake tensors: the most bytes that one rank's device holds at once, without the memory.

`suites.offload.memory_estimates` has it as `fake_step`. What is walked is the variant's own engine. Only DDP
gives way to
the plain model, for its reducer is written in C++ and cannot be walked. Its gradients are views into its
buckets: the same bytes, and they stay from step to step, as the plain step's gradients do here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.instruments.memory.cpu_op_workspace import host_workspace
from harness.instruments.memory.fake_tensors import StorageLog, logged
from harness.instruments.memory.layer_extrapolation import extrapolate_layers, layers_to_walk
from harness.instruments.memory.memory_timeline import OpSite, Snapshot
from harness.records import Unavailable
from suites.offload import activations
from suites.offload.engines import adamw, autocast, fsdp2
from suites.offload.subject import DEVICE, Plan, Workload
from suites.training.host_memory import HostMemory as Host
from suites.training.model import Transformer

CPU = torch.device("cpu")
STEPS = 2
"""The second is the first with all states."""

COPIED_BY_GLOO = {"_allgather_base_": 0, "_reduce_scatter_base_": 1}
"""Which argument of these collectives gloo holds once more meanwhile, as its allocations show."""


def fake_step_B(workload: Workload, plan: Plan) -> float:
    """Peak bytes of a steady step on rank 0, which holds the largest shard; data counts from the batch on.

    Layers are alike: few are walked, and each place of the step is carried on to all of them
    (`harness.instruments.memory.layer_extrapolation`). The CPU's operations hold bytes of their own for
    each thread: they are
    asked of this host, with as many threads as torch now has. Raises `Unavailable` where there is no walk.
    """
    reason = unwalkable(workload, plan)
    if reason is not None:
        raise Unavailable(reason)
    moments = _short(workload, plan) or walk(workload, plan)
    return float(max(one.total_B for one in moments.values()))


def unwalkable(workload: Workload, plan: Plan) -> str | None:
    """Why such a step has no walk; None where it has one."""
    if plan.engine not in ("ddp", "fsdp2"):
        return f"the engine {plan.engine} is not walked"
    if (plan.optimizer, plan.parameters) != (DEVICE, DEVICE) or plan.activations.startswith("offloaded"):
        return "fake tensors know one floor: what lies on the host would count as the device's"
    if torch.cuda.is_available():
        return "the operations walked are the CPU's, and a GPU's hold other bytes; suite=memory walks those"
    if plan.engine == "fsdp2" and dist.is_initialized():
        return "this process is a rank itself, and cannot stand for others"
    return None


def _short(workload: Workload, plan: Plan) -> Mapping[OpSite, Snapshot] | None:
    """What a walk of all layers would find; None where there are too few to gain by it."""
    fewer = layers_to_walk(workload.num_hidden_layers, workload.ranks if plan.engine == "fsdp2" else 1)
    if fewer is None:
        return None
    at_fewer, at_more = (
        walk(replace(workload, num_hidden_layers=num_hidden_layers), plan)
        for num_hidden_layers in (fewer, fewer + 1)
    )
    return extrapolate_layers(at_fewer, at_more, fewer, workload.num_hidden_layers)


@lru_cache(maxsize=16)
def walk(workload: Workload, plan: Plan) -> Mapping[OpSite, Snapshot]:
    """The steady step, layer by layer: at each place the moment of most live bytes."""
    log = StorageLog(workspace, ask_host=True)
    ranks = fake_process_group(workload.ranks) if plan.engine == "fsdp2" else nullcontext()
    with ranks, logged(log):
        model = Transformer(workload.shape, attention="sdpa")
        host = Host(CPU)
        activations.place(model, plan.activations, host)
        make: Any = fsdp2.Engine if plan.engine == "fsdp2" else Plain
        engine = make(model, plan, workload, host)
        tell_phases(engine, log)
        for _ in range(STEPS):
            log.enter_phase("batch")
            since = len(log.ledger.events)
            engine.step(
                *(
                    torch.zeros(workload.micro_batch_size, workload.seq_len, dtype=torch.int64)
                    for _ in range(2)
                )
            )
    return log.ledger.largest(since)


def workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """What an operation holds beside its results, on the CPU and between ranks that meet by gloo."""
    if operation.namespace == "c10d" and operation._opname in COPIED_BY_GLOO:
        return int(arguments[COPIED_BY_GLOO[operation._opname]].nbytes)
    return host_workspace(operation, arguments, result)


class Plain:
    """`suites.offload.engines.ddp.Engine` without DDP: gradients stay from step to step, as buckets do."""

    def __init__(self, model: Transformer, plan: Plan, workload: Workload, host: Host) -> None:
        self.model, self.workload, self.device = model, workload, host.device
        self.optimizer = adamw(model.parameters(), workload)

    def step(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """One training step; the loss."""
        with autocast(self.device, self.workload.precision):
            loss: Tensor = self.model(tokens_BT, targets_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return loss.detach()


def tell_phases(engine: Any, log: StorageLog) -> None:
    """Have the log told where in its step the engine is."""
    engine.model.register_forward_pre_hook(lambda *_: log.enter_phase("forward"))
    engine.model.register_forward_hook(lambda *_: log.enter_phase("backward"))
    engine.optimizer.register_step_pre_hook(lambda *_: log.enter_phase("optimizer"))
    engine.optimizer.register_step_post_hook(lambda *_: log.enter_phase("zero_grad"))
