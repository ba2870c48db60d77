"""What a rank of the offload suite does; called by name, see `harness.instruments.distributed.rank_pool`."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.instruments.distributed.rank_worker import gpu
from harness.instruments.memory.allocator import watch
from harness.instruments.memory.private_memory import STACK_KIB, private_bytes, private_limit
from harness.records import WrongResult
from suites.offload import activations
from suites.offload.drain_gloo import Settled, wait_for_threads
from suites.offload.engines import deepspeed
from suites.offload.subject import Plan, Workload
from suites.offload.transfer_counter import Traffic
from suites.training import data as text
from suites.training.host_memory import HostMemory as Host
from suites.training.model import Transformer

Memory = dict[str, Any]

SETTLING = 2
"""Steps before a rank's memory is as it stays: the first makes states, the second is the first with them."""

STEADY = 2

COPIED_B, COPIES = 2**28, 5
"""To tell how fast the floors exchange bytes: more than most caches hold."""

ALLOWANCE_B = 2**20
"""Beyond a budget, where private memory stands for the device: for Python's own objects."""

NO_MEMORY = "allocate memory"
"""As torch's CPU allocator says it (c10/core/impl/alloc_cpu.cpp)."""


class Trainer:
    """A rank's part of the training: its batches, its model, and the variant's engine."""

    def __init__(self, workload: Workload, plan: Plan, seed: int) -> None:
        torch.manual_seed(seed)
        self.workload, self.seed, self.seen = workload, seed, 0
        self.host = Host(device(), workload.folder)
        model = Transformer(workload.shape, attention="sdpa").to(device())
        activations.place(model, plan.activations, self.host)
        engine = import_module(f"suites.offload.engines.{plan.engine}")
        self.engine = engine.Engine(model, plan, workload, self.host)

    def step(self) -> Tensor:
        """One training step on the next of this rank's batches; no two ranks share one."""
        number = self.seen * dist.get_world_size() + dist.get_rank()
        self.seen += 1
        size = (self.workload.micro_batch_size, self.workload.seq_len)
        tokens_BT, targets_BT = text.batch(self.workload.vocab_size, size, self.seed, number)
        loss: Tensor = self.engine.step(tokens_BT.to(device()), targets_BT.to(device()))
        return loss


def device() -> torch.device:
    """This rank's GPU where ranks meet by NCCL, else the CPU."""
    return gpu() if dist.get_backend() == "nccl" else torch.device("cpu")


def made(workload: Mapping[str, Any], plan: Mapping[str, Any], seed: int) -> Trainer:
    """A trainer of what travelled as JSON."""
    if device().type == "cuda":
        torch.cuda.set_device(device())
    return Trainer(Workload(**workload), Plan(**plan), seed)


def compiled(memory: Memory, plan: Mapping[str, Any]) -> None:
    """Have deepspeed compile what the plan needs of it, if it has not yet."""
    if plan["engine"] == "deepspeed":
        deepspeed.compile_for(Plan(**plan))


def course(
    memory: Memory, workload: Mapping[str, Any], plan: Mapping[str, Any], seed: int, steps: int
) -> dict[str, Any]:
    """Train so many steps; of each this rank's loss, its seconds, and what an engine counted that counts."""
    trainer = made(workload, plan, seed)
    told: dict[str, Any] = {"loss": [], "seconds": [], "counted": []}
    for _ in range(steps):
        before = counted(trainer)
        dist.barrier()
        begin_s = time.perf_counter()
        loss = trainer.step()
        if device().type == "cuda":
            torch.cuda.synchronize()
        told["seconds"].append(time.perf_counter() - begin_s)
        told["loss"].append(float(loss))
        told["counted"].append({name: now - before[name] for name, now in counted(trainer).items()})
    trainer.engine.close()
    return told


def counted(trainer: Trainer) -> dict[str, int]:
    """Bytes migrated and major faults so far, of an engine whose memory is managed; else nothing."""
    moved: dict[str, int] = getattr(trainer.engine, "moved", dict)()
    if not moved:
        return {}
    pages = moved["pages_in"] + moved["pages_out"]
    return {"migrated_B": pages * moved["page_B"], "major_faults": moved["major_faults"]}


def footprint(
    memory: Memory, workload: Mapping[str, Any], plan: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Bytes of steady steps: the device's peak, what moves, what disks read and write; the host's most.

    The peak is by the allocator's events; the host's tensors are not its own, and are counted beside it. An
    update that is to be delayed is, from the first step.
    """
    plan = {**plan, "delay_after": 0}
    gc.collect()
    settled = Settled() if device().type == "cpu" else nullcontext()
    with settled, watch(device()) as watched:
        watched.mark("build")
        trainer = made(workload, plan, seed)
        for step in range(SETTLING + STEADY):
            watched.mark(f"step {step}")
            trainer.step()
            if device().type == "cpu":
                wait_for_threads()  # DDP's collectives are begun where no mode sees them
    peaks_B = [one.live_B for one in watched.peaks]
    dist.barrier()
    before = disk_B()
    with Traffic(trainer.host) as traffic:
        trainer.step()
    after = disk_B()
    up_s, down_s = copying_s(Host(device(), trainer.workload.folder))
    told = {
        "up_s": up_s,
        "down_s": down_s,
        "build_B": peaks_B[0],
        "peaks_B": peaks_B[1 + SETTLING :],
        "host_B": trainer.host.most_B,
        "locked_B": trainer.engine.host_private_B,
        "up_B": traffic.up_B,
        "down_B": traffic.down_B,
        "read_B": after["read_bytes"] - before["read_bytes"],
        "written_B": after["write_bytes"] - before["write_bytes"],
        "files_B": getattr(trainer.engine, "files_B", int)(),
    }
    trainer.engine.close()
    return told


def copying_s(host: Host) -> tuple[float, float]:
    """Seconds to copy `COPIED_B` bytes up to the device, and down, all ranks at once."""
    below = host.empty((COPIED_B,), torch.uint8)
    above = torch.zeros(COPIED_B, dtype=torch.uint8, device=host.device)
    below.fill_(0)
    return copy_s(above, below), copy_s(below, above)


def copy_s(target: Tensor, source: Tensor) -> float:
    """Seconds of one copy, the median of some."""
    taken_s = []
    for _ in range(COPIES):
        dist.barrier()
        begin_s = time.perf_counter()
        target.copy_(source)
        if device().type == "cuda":
            torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - begin_s)
    return median(taken_s)


def disk_B() -> dict[str, int]:
    """Bytes that disks read and wrote for this process, by the kernel's account (proc(5))."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}


def within(
    memory: Memory,
    workload: Mapping[str, Any],
    plan: Mapping[str, Any],
    seed: int,
    budget_B: int | None,
    steps: int,
) -> list[float]:
    """Train so many steps in so many bytes of device memory; the losses. For a rank that did nothing yet.

    A model of one layer is trained first, so that what libraries take once and for all is taken. The limit
    holds once the model stands. Raises MemoryError where a step does not fit,
    `WrongResult` where a loss is no finite number.
    """
    plan = {**plan, "delay_after": 0}
    course(memory, {**workload, "num_hidden_layers": 1}, plan, seed, steps)
    malloc_trim_heap()
    base_B = private_bytes() - stacks_B()
    with oom_as_memory_error():
        trainer = made(workload, plan, seed)
        malloc_trim_heap()
        own_B = trainer.engine.host_private_B + stacks_B()
        with nullcontext() if budget_B is None else device_limit(base_B, budget_B + own_B):
            losses = [float(trainer.step()) for _ in range(steps)]
    trainer.engine.close()
    if not all(map(math.isfinite, losses)):
        raise WrongResult(f"losses: {', '.join(f'{one:.4g}' for one in losses)}")
    return losses


@contextmanager
def oom_as_memory_error() -> Iterator[None]:
    """Raise MemoryError in place of what torch raises where an allocation fails."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise MemoryError(str(error).partition("\n")[0]) from None
        raise


def stacks_B() -> int:
    """What the stacks of this process's threads reserve."""
    return len(os.listdir("/proc/self/task")) * STACK_KIB * 1024


def malloc_trim_heap() -> None:
    """Let the kernel have what nothing lives in (malloc_trim(3))."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def device_limit(base_B: int, budget_B: int) -> Iterator[None]:
    """Let allocations of device memory fail beyond `budget_B`.

    On the CPU a limit on private memory beyond `base_B`, on a GPU the caching allocator's own.
    """
    cuda = device().type == "cuda"
    with capped(budget_B) if cuda else private_limit(base_B + budget_B + ALLOWANCE_B):
        yield


@contextmanager
def capped(budget_B: int) -> Iterator[None]:
    """Give torch so many bytes of this rank's GPU."""
    torch.cuda.empty_cache()
    whole_B = torch.cuda.get_device_properties(device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(budget_B / whole_B, 1.0), device())
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device())
