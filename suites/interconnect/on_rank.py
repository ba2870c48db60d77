"""What a rank of the interconnect suite does; called by name, see
`harness.instruments.distributed.rank_pool`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from harness.instruments.distributed.rank_worker import gpu
from suites.interconnect.strategies import ddp, fsdp2, local, zero3
from suites.interconnect.subject import Plan, Workload
from suites.interconnect.trace import Event, Trace, traced
from suites.training import data as text
from suites.training.model import Transformer

Memory = dict[str, Any]

STRATEGIES: dict[str, Any] = {"ddp": ddp, "fsdp2": fsdp2, "zero3": zero3, "local": local}


class Trainer:
    """A rank's part of the training: its batches, its model, and the variant's way to update it."""

    def __init__(self, workload: Workload, plan: Plan, seed: int) -> None:
        torch.manual_seed(seed)
        self.workload, self.plan, self.seed = workload, plan, seed
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        strategy = STRATEGIES[plan.strategy]
        model = Transformer(workload.shape, attention="sdpa").to(device())
        self.strategy = strategy.Wrapped(model, plan, workload.learning_rate)
        self.seen = 0  # batches
        self.after_update: list[Any] = []  # called with this trainer after each update
        self.traced: list[Event] = []  # the last update's, where it was traced
        for module, settings in plan.changes:
            import_module(module).on_rank(self, settings)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next of this rank's batches; no two ranks share one."""
        number = self.seen * self.world + self.rank
        self.seen += 1
        workload = self.workload
        return batch_of(workload, self.seed, number)

    def update(self, batches: list[tuple[Tensor, Tensor]]) -> float:
        """One update from `plan.accumulate` batches; their mean loss on this rank."""
        losses = [
            self.strategy.backward(tokens, targets, 1 / len(batches), last=index == len(batches) - 1)
            for index, (tokens, targets) in enumerate(batches)
        ]
        self.strategy.update()
        for change in self.after_update:
            change(self)
        return float(torch.stack(losses).mean())


def device() -> torch.device:
    """This rank's GPU where ranks meet by NCCL, else the CPU."""
    return gpu() if dist.get_backend() == "nccl" else torch.device("cpu")


def whereabouts(memory: Memory) -> tuple[str, int, str]:
    """What tells this machine from others, this rank's number on its node, its device's name."""
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name = torch.cuda.get_device_name(device()) if device().type == "cuda" else "cpu"
    return machine, int(os.environ["LOCAL_RANK"]), name


def batch_of(workload: Workload, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """The batch of that number, on this rank's device."""
    tokens_BT, targets_BT = text.batch(
        workload.vocab_size, (workload.micro_batch_size, workload.seq_len), seed, number
    )
    return tokens_BT.to(device()), targets_BT.to(device())


def make(memory: Memory, key: str, workload: Mapping[str, Any], plan: Mapping[str, Any], seed: int) -> None:
    """Make the variant's trainer."""
    if device().type == "cuda":
        torch.cuda.set_device(device())
    changes = tuple((module, settings) for module, settings in plan["changes"])
    memory[key] = Trainer(Workload(**workload), Plan(**{**plan, "changes": changes}), seed)


def drop(memory: Memory, key: str) -> None:
    """Let the trainer go."""
    memory.pop(key, None)


def updates(memory: Memory, key: str, count: int) -> dict[str, list[float]]:
    """Do so many updates; the loss and the seconds of each, without the making of its batches."""
    trainer: Trainer = memory[key]
    losses, times_s = [], []
    for _ in range(count):
        batches = [trainer.batch() for _ in range(trainer.plan.accumulate)]
        dist.barrier()
        begin_s = time.perf_counter()
        losses.append(trainer.update(batches))
        times_s.append(time.perf_counter() - begin_s)
    return {"loss": losses, "seconds": times_s}


def gradient_error(memory: Memory, key: str) -> float:
    """How far a new trainer's first gradients are off: the worst |ours - plain| / |plain| of a parameter.

    Plain: one model, on this rank, takes the batches of all ranks.
    """
    trainer: Trainer = memory[key]
    workload, world, count = trainer.workload, trainer.world, trainer.plan.accumulate
    for index in range(count):
        trainer.strategy.backward(*trainer.batch(), 1 / count, last=index == count - 1)
    ours = trainer.strategy.gradients()
    torch.manual_seed(trainer.seed)
    plain = Transformer(workload.shape, attention="sdpa").to(device())
    for number in range(count * world):
        (plain(*batch_of(workload, trainer.seed, number)) / (count * world)).backward()
    errors = (
        float((ours[name] - one.grad).norm() / one.grad.norm())
        for name, one in plain.named_parameters()
        if one.grad is not None
    )
    return max(errors, key=_badness)


def _badness(error: float) -> float:
    """What is no number is the worst."""
    return math.inf if math.isnan(error) else error


def spread(memory: Memory, key: str) -> float:
    """By how much parameters differ between ranks at most, relative to the largest parameter."""
    worst = 0.0
    for parameter in memory[key].strategy.parameters().values():
        low, high = parameter.clone(), parameter.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        worst = max(worst, float((high - low).max() / high.abs().max().clamp_min(1e-12)), key=_badness)
    return worst


def watch(memory: Memory, key: str) -> None:
    """Make a trainer's updates such that `trace` sees all of their collectives."""
    trainer: Trainer = memory[key]
    plan = trainer.plan
    if plan.strategy == "ddp" and plan.reduce_dtype == "fp32" and not plan.changes:  # no hook of its own
        trainer.strategy.model.register_comm_hook(None, allreduce_hook)


def trace(memory: Memory, key: str) -> list[Event]:
    """The events of one update."""
    trainer: Trainer = memory[key]
    batches = [trainer.batch() for _ in range(trainer.plan.accumulate)]
    backward = trainer.strategy.backward
    dist.barrier()
    with traced() as seen:
        if trainer.plan.strategy == "ddp":
            trainer.strategy.backward = _drained(backward, seen)
        trainer.update(batches)
        seen.ended()
    trainer.strategy.backward = backward
    trainer.traced = seen.events
    return seen.events


def _drained(backward: Callable[..., Tensor], seen: Trace) -> Callable[..., Tensor]:
    """DDP's backward pass ends with waiting for every bucket."""

    def drained(*arguments: Any, **named: Any) -> Tensor:
        loss = backward(*arguments, **named)
        seen.drained()
        return loss

    return drained


def collectives(memory: Memory, key: str) -> list[list[float]]:
    """The last traced update again, asleep where it computed: when its collectives began and were over.

    In the update's own order and pace, for how long gloo takes for one hangs on which rank is first.
    """
    events = memory[key].traced
    begin = {event[1]: _begin(*event[2:]) for event in events if event[0] == "begin"}
    begun_s: list[float] = []
    with ThreadPoolExecutor(1) as watcher:
        over_s: dict[int, Future[float]] = {}
        dist.barrier()
        for kind, value, *_ in events:
            if kind == "compute":
                time.sleep(value)
            elif kind == "begin":
                begun_s.append(time.monotonic())
                over_s[value] = watcher.submit(_over_s, begin[value]())
            else:
                over_s[value].result()
    return [[begun, over.result()] for begun, over in zip(begun_s, over_s.values(), strict=True)]


def _over_s(work: Any) -> float:
    """When it is over."""
    work.wait()
    return time.monotonic()


def _begin(name: str, elements: int, dtype: str) -> Callable[[], Any]:
    """What begins that collective, of tensors of its own; `elements` of its larger side."""
    large = torch.zeros(elements, dtype=getattr(torch, dtype))
    small = torch.zeros(elements // dist.get_world_size(), dtype=large.dtype)
    kinds: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(large, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(large, small, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(small, large, async_op=True),
    }
    return kinds[name]
