"""The functions that a rank of the offload suite runs, called by name.

See `harness.instruments.distributed.rank_pool`. `step` is a training step as `TrainingStep.described` gives
it, `managed` the fields of `subject.Managed`. Bytes that cross between the device and the tier below it are
counted per operation while a step runs.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.instruments.distributed.deepspeed_engine import load, missing
from harness.instruments.distributed.rank_worker import RankState
from harness.instruments.memory.allocator import watch
from harness.instruments.memory.process_memory import STACK_KIB, private_bytes, private_limit
from harness.instruments.process import sent_B
from harness.records import Unavailable, WrongResult
from suites.offload.managed import manage
from suites.offload.subject import DEVICE, DISK
from suites.training.host_memory import HostMemory, address_of
from suites.training.on_rank import DrainGloo, device, wait_for_threads
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

COPY_OPERATIONS = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)


class TransferCounter(TorchDispatchMode):
    """Counts inside the block: `up_B` from the host to the device, `down_B` in the other direction.

    An operation that reads from one tier and writes to the other moves what it reads, each part of a storage
    once; a copy between types moves the target's bytes, because torch converts before it sends
    (ATen/native/cuda/Copy.cu). Operations on one tier move nothing, nor does code outside of torch's
    operations, such as an optimizer in C++ on the host's tensors. The host counts what other threads copy.
    """

    def __init__(self, host: HostMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host = host
        self.up_B, self.down_B = -host.up_B, -host.down_B

    def __exit__(self, *raised: Any) -> None:
        """Add what other threads copied meanwhile."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.up_B += self.host.up_B
        self.down_B += self.host.down_B

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count what crossed."""
        if any(issubclass(one, DTensor) for one in types):  # operations on its parts are seen
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func in COPY_OPERATIONS:
            targets, sources = ([one] if isinstance(one, Tensor) else one for one in args[:2])
            for target, source in zip(targets, sources, strict=True):
                self._cross(target, (source,), min(target.nbytes, source.numel() * target.itemsize))
            return result
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        made = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        targets = list(_written(func, args, kwargs or {})) or made
        if targets:
            known = {address_of(one) for one in targets}
            parts = {  # each part of a storage once
                (address_of(one), int(one.storage_offset()), one.numel()): one
                for one in given
                if address_of(one) not in known
            }
            self._cross(targets[0], list(parts.values()))
        return result

    def _cross(self, target: Tensor, sources: Sequence[Tensor], size_B: int | None = None) -> None:
        down = self.host.holds(target)
        moved_B = sum(
            one.nbytes if size_B is None else size_B
            for one in sources
            if self.host.holds(one) != down and one.ndim > 0
        )
        if down:
            self.down_B += moved_B
        else:
            self.up_B += moved_B


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Return the arguments that the operation writes, by its schema."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (one for one in tree_leaves(value) if isinstance(one, Tensor))


DescribedStep = Mapping[str, Any]
"""See `TrainingStep.described`."""

SETTLING = 2
"""Steps before a rank's memory is steady: the first creates states, the second is the first with them."""

STEADY = 2

SENT = 2

FOOTPRINT_STEPS = SETTLING + STEADY + 1 + SENT
"""Steps of `footprint`: after the steady ones, one in which what moves between tiers is counted, and those in
which what ranks send each other is."""

COPIED_B, COPIES = 2**28, 5
"""Bytes copied to measure the rate between the tiers: larger than most caches."""

ALLOWANCE_B = 2**20
"""Bytes beyond a budget, where private memory represents the device: for Python's own objects."""

NO_MEMORY = "allocate memory"
"""Text in the message of torch's CPU allocator (c10/core/impl/alloc_cpu.cpp)."""


def build_trainer(step: DescribedStep, folder: str, managed: Mapping[str, Any] | None = None) -> Trainer:
    """Return this rank's trainer of a step that travelled as JSON."""
    if device().type == "cuda":
        torch.cuda.set_device(device())
    built = build_step(**step)
    if managed is not None:
        built = manage(built, managed["resident"])
    return Trainer(built, device(), folder=folder)


def train_step(trainer: Trainer) -> float:
    """Train one step on the next of this rank's batches; no two ranks share one. Return its loss."""
    return float(trainer.train_step(trainer.text_batches()))


def compile_operators(state: RankState, step: DescribedStep) -> None:
    """Make deepspeed compile what the step needs, if it has not yet."""
    for name, settings in step["techniques"]:
        if name != "zero":
            continue
        tiers = [settings.get(key, DEVICE) for key in ("optimizer", "parameters")]
        needed = ["cpu_adam"] * (tiers[0] != DEVICE) + ["async_io"] * (DISK in tiers)
        for operator in needed:
            if (lacking := missing(operator)) is not None:
                raise Unavailable(lacking)
            load(operator)


def train_steps(
    state: RankState, step: DescribedStep, folder: str, steps: int, managed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Train steps and return each one's loss, seconds, and pages moved where memory is managed."""
    trainer = build_trainer(step, folder, managed)
    course: dict[str, Any] = {"loss": [], "seconds": [], "counted": []}
    for _ in range(steps):
        batches, before = trainer.text_batches(), counted(trainer)
        dist.barrier()
        begin_s = time.perf_counter()
        loss = trainer.train_step(batches)
        if device().type == "cuda":
            torch.cuda.synchronize()
        course["seconds"].append(time.perf_counter() - begin_s)
        course["loss"].append(float(loss))
        course["counted"].append({name: now - before[name] for name, now in counted(trainer).items()})
    trainer.close()
    return course


def counted(trainer: Trainer) -> dict[str, int]:
    """Return bytes migrated and major faults so far, where memory is managed and counted; else nothing."""
    moved: dict[str, int] = getattr(trainer.optimizer, "moved", dict)()
    if not moved:
        return {}
    pages = moved["pages_in"] + moved["pages_out"]
    return {"migrated_B": pages * moved["page_B"], "major_faults": moved["major_faults"]}


def footprint(
    state: RankState, step: DescribedStep, folder: str, managed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return bytes of steady steps: the device's peak, what moves and is sent, disk traffic, the host's most.

    The peak is by the allocator's events; tensors on the host are not the allocator's, and counted apart.
    """
    gc.collect()
    drained = DrainGloo() if device().type == "cpu" else nullcontext()
    with drained, watch(device()) as watched:
        watched.mark("build")
        trainer = build_trainer(step, folder, managed)
        for number in range(SETTLING + STEADY):
            watched.mark(f"step {number}")
            train_step(trainer)
            if device().type == "cpu":
                wait_for_threads()  # DDP's collectives start where no mode sees them
    peaks_B = [one.live_B for one in watched.peaks]
    dist.barrier()
    disk = psutil.Process()
    before = disk.io_counters()  # by the kernel's account (proc(5))
    with TransferCounter(trainer.host) as traffic:
        train_step(trainer)
    after = disk.io_counters()
    footprint_B = {
        "build_B": peaks_B[0],
        "peaks_B": peaks_B[1 + SETTLING :],
        "host_B": trainer.host.most_B,
        "locked_B": trainer.optimizer.host_private_B,
        "up_B": traffic.up_B,
        "down_B": traffic.down_B,
        "sent_B": [sent_in_step_B(trainer) for _ in range(SENT)],
        "read_B": after.read_bytes - before.read_bytes,
        "written_B": after.write_bytes - before.write_bytes,
        "files_B": trainer.optimizer.files_B(),
    }
    trainer.close()
    return footprint_B


def sent_in_step_B(trainer: Trainer) -> int:
    """Return the bytes that this rank sends in one step, over TCP: what gloo sends, and a barrier."""
    dist.barrier()
    before_B = sent_B()
    train_step(trainer)
    dist.barrier()  # until then this rank may pass on what others sent
    return sent_B() - before_B


def copying_s(state: RankState, step: DescribedStep, folder: str) -> dict[str, float]:
    """Return seconds to copy `COPIED_B` bytes up to the device, and down, all ranks at once."""
    host = HostMemory(device(), folder)
    below = host.empty((COPIED_B,), torch.uint8)
    above = torch.zeros(COPIED_B, dtype=torch.uint8, device=host.device)
    below.fill_(0)
    return {"up": copy_s(above, below), "down": copy_s(below, above)}


def copy_s(target: Tensor, source: Tensor) -> float:
    """Return seconds of one copy, the median of some."""
    taken_s = []
    for _ in range(COPIES):
        dist.barrier()
        begin_s = time.perf_counter()
        target.copy_(source)
        if device().type == "cuda":
            torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - begin_s)
    return median(taken_s)


def train_within_budget(
    state: RankState,
    step: DescribedStep,
    folder: str,
    budget_B: int | None,
    steps: int,
    managed: Mapping[str, Any] | None = None,
) -> list[float]:
    """Train steps within a budget of device memory and return the losses; for a fresh rank.

    A model of one layer is trained first, so that libraries' one-time memory is allocated. The limit applies
    once the model is built. Raises MemoryError where a step does not fit, `WrongResult` where a loss is not
    finite.
    """
    shallow = {**step, "workload": {**step["workload"], "num_hidden_layers": 1}}
    train_steps(state, shallow, folder, steps, managed)
    malloc_trim_heap()
    base_B = private_bytes() - stacks_B()
    with oom_as_memory_error():
        trainer = build_trainer(step, folder, managed)
        malloc_trim_heap()
        own_B = trainer.optimizer.host_private_B + stacks_B()
        with nullcontext() if budget_B is None else device_limit(base_B, budget_B + own_B):
            losses = [train_step(trainer) for _ in range(steps)]
    trainer.close()
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
    """Return the bytes that the stacks of this process's threads reserve."""
    return len(os.listdir("/proc/self/task")) * STACK_KIB * 1024


def malloc_trim_heap() -> None:
    """Return unused memory to the kernel (malloc_trim(3))."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def device_limit(base_B: int, budget_B: int) -> Iterator[None]:
    """Make allocations of device memory fail beyond `budget_B`.

    On the CPU a limit on private memory beyond `base_B`, on a GPU the caching allocator's own.
    """
    if device().type != "cuda":
        with private_limit(base_B + budget_B + ALLOWANCE_B):
            yield
        return
    torch.cuda.empty_cache()
    share = min(budget_B / torch.cuda.get_device_properties(device()).total_memory, 1.0)
    torch.cuda.set_per_process_memory_fraction(share, device())
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device())
