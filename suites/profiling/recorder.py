"""Record training steps of one rank: its time, torch's trace, and what the system counted meanwhile.

Each step is marked as torch.profiler marks it (`ProfilerStep#k`), and its batches come from a DataLoader.
Counters are read between steps. What is injected into a rank's own steps is a sleep, which sums what it took.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, IterableDataset

from harness.instruments.distributed.fake_process_group import use_ring_reduce_scatter
from harness.instruments.distributed.rank_worker import RankState
from harness.instruments.memory.bf16_products import matmul_FLOP_per_s
from harness.instruments.timing.core_account import chain_s, core_counts
from harness.instruments.timing.device_telemetry import DeviceSampler, state_reader, telemetry_means
from harness.records import Unavailable
from suites.profiling.workload import Workload
from suites.training.on_rank import device
from suites.training.step import TrainingStep
from suites.training.techniques import build_step
from suites.training.trainer import Batch, Trainer


class Sleeper:
    """Sleeps while it is `active`, and sums by its own clock how long: a sleep takes longer than asked."""

    def __init__(self, seconds: float, every: int = 1) -> None:
        self._seconds, self._every = seconds, every
        self._calls = 0
        self.active = False
        self.slept_s = 0.0

    def __call__(self) -> None:
        """Sleep, if this call's turn has come."""
        if not self.active:
            return
        self._calls += 1
        if self._calls % self._every == 0:
            begin_s = time.perf_counter()
            time.sleep(self._seconds)
            self.slept_s += time.perf_counter() - begin_s


LEFT_OUT = "step before the recording"
"""The mark of steps that are left out, in which caches and the profiler's buffers fill."""


class TextBatches(IterableDataset[Batch]):
    """The trainer's batches of text, each after the sleeper's wait."""

    def __init__(self, trainer: Trainer, wait: Sleeper) -> None:
        self._trainer, self._wait = trainer, wait

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self._wait()
            yield self._trainer.text_batch()


class StepAccount(NamedTuple):
    """One step: its seconds, those that an injector took, and what the system counted over it.

    `load_s`: of a competing process. `chain_s`: of dependent operations after the step, inverse to the clock.
    """

    seconds: float
    slept_s: float
    load_s: float
    waited_for_core_s: float
    throttled_s: float
    chain_s: float


class Recorder:
    """Records steps of a trainer from its start to `end`, under the profiler if `profiler` is true.

    `wait` and `launches` are called before batches and before each launch of a linear layer in the forward
    pass; `load` is a competing process's id, or 0.
    """

    def __init__(self, trainer: Trainer, wait: Sleeper, launches: Sleeper, load: int, profiler: bool) -> None:
        self._trainer = trainer
        self._wait, self._launches = wait, launches
        self._load = Path(f"/proc/{load}/schedstat") if load else None
        self._batches = iter(DataLoader(TextBatches(trainer, wait), batch_size=None))
        self._stack = ExitStack()
        for one in trainer.plain.modules():
            if isinstance(one, nn.Linear):
                hook = one.register_forward_pre_hook(lambda module, inputs: launches())
                self._stack.callback(hook.remove)
        read = state_reader(trainer.device)
        self._sampler = self._stack.enter_context(DeviceSampler(read)) if read else None
        cuda = [ProfilerActivity.CUDA] if trainer.device.type == "cuda" else []
        recorded: Any = profile(activities=[ProfilerActivity.CPU, *cuda]) if profiler else None
        self._profiler = self._stack.enter_context(recorded) if profiler else None
        gc.disable()

    def end(self, trace: str) -> dict[str, float]:
        """Write the trace, if one was recorded, and return the means of the device's telemetry by name."""
        gc.enable()
        self._stack.close()
        if self._profiler is not None:
            self._profiler.export_chrome_trace(trace)
        return telemetry_means(self._sampler.samples) if self._sampler else {}

    def step(self, number: int | None) -> StepAccount:
        """Run one step, marked as this one, or None: as left out."""
        trainer = self._trainer
        slept_s, load_s, before = self._slept_s(), self._load_s(), core_counts()
        begin_s = time.perf_counter()
        with record_function(LEFT_OUT if number is None else f"ProfilerStep#{number}"):
            count = trainer.step.workload.gradient_accumulation_steps
            trainer.train_step([next(self._batches) for _ in range(count)])
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
        taken_s = time.perf_counter() - begin_s
        after = core_counts()
        return StepAccount(
            taken_s,
            self._slept_s() - slept_s,
            self._load_s() - load_s,
            after.waited_s - before.waited_s,
            after.throttled_s - before.throttled_s,
            chain_s(),
        )

    def _slept_s(self) -> float:
        return self._wait.slept_s + self._launches.slept_s

    def _load_s(self) -> float:
        """Return the processor time of the competing process so far."""
        return 0.0 if self._load is None else int(self._load.read_text().split()[0]) / 1e9


InjectionKind = Literal["data_wait", "launch_sleep", "competing_load", "cpu_quota", "slow_link"]


@dataclass(frozen=True, slots=True)
class Injection:
    """A known loss of time, in a rank or, of a link, between all.

    `seconds`: of each sleep. `every`: n, before each n-th launch of a linear layer. `share`: of one core
    that a competing load takes or that a quota leaves. `rate_B_per_s`: of the link, each way.
    """

    kind: InjectionKind
    rank: int
    seconds: float = 0.0
    every: int = 1
    share: float = 0.0
    rate_B_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step, and what is injected into it."""

    workload: Workload
    seed: int
    step: TrainingStep
    injection: Injection | None = None

    def with_injection(self, rank: int | None = None, **fields: Any) -> Subject:
        """Return the subject with an injection into a rank, or the last; raises `Unavailable` without it."""
        count = self.workload.dp_size
        injection = Injection(rank=count - 1 if rank is None else rank, **fields)
        if injection.rank >= count:
            raise Unavailable(
                f"a loss cannot be injected into rank {injection.rank}: ranks are 0 to {count - 1}"
            )
        return replace(self, injection=injection)


def baseline(workload: Workload, seed: int) -> Subject:
    """Return the baseline's subject: the step with nothing injected."""
    return Subject(workload, seed, build_step(workload.training, workload.techniques, seed))


def begin(state: RankState, cores: list[int]) -> None:
    """Keep this rank on its core, if it has one of its own, with one thread."""
    torch.set_num_threads(1)
    use_ring_reduce_scatter()
    if cores:
        os.sched_setaffinity(0, {cores[dist.get_rank()]})
        for thread in os.listdir("/proc/self/task"):  # gloo's threads exist already
            os.sched_setaffinity(int(thread), {cores[dist.get_rank()]})


def matmul_rate(state: RankState) -> float | None:
    """Return the FLOP/s at which this rank multiplies in fp32 while all do; None on a GPU."""
    dist.barrier()
    return None if device().type == "cuda" else matmul_FLOP_per_s()["fp32"]


def start(state: RankState, key: str, injection: Mapping[str, Any] | None, load: int, profiler: bool) -> None:
    """Start a recording; `load` is the process that competes with the rank of the injection."""
    own = injection if injection is not None and injection["rank"] == dist.get_rank() else None
    sleeper = Sleeper(own["seconds"], own["every"]) if own else Sleeper(0.0)
    kind = own["kind"] if own else ""
    wait, launches = (sleeper if kind == one else Sleeper(0.0) for one in ("data_wait", "launch_sleep"))
    trainer: Trainer = state[key]
    state["sleeper"] = sleeper
    state["recorder"] = Recorder(trainer, wait, launches, load if own else 0, profiler)


def step(state: RankState, number: int | None, injected: bool) -> list[float]:
    """Run one step with the others, with what is injected into this rank itself, or without; its account."""
    state["sleeper"].active = injected
    recorder: Recorder = state["recorder"]
    dist.barrier()
    return list(recorder.step(number))


def end(state: RankState, folder: str) -> dict[str, float]:
    """End the recording, write the trace into `folder`, and return the means of the device's telemetry."""
    recorder: Recorder = state.pop("recorder")
    return recorder.end(os.path.join(folder, f"rank{dist.get_rank()}.json"))


def communicate_s(state: RankState, key: str, count: int) -> list[float]:
    """Return the seconds of what the step sends, alone, `count` times: see `send_as`."""
    trainer: Trainer = state[key]
    ranks = dist.get_world_size()
    numbers = sum(one.numel() for one in trainer.plain.parameters())
    whole = torch.ones(-(-numbers // ranks) * ranks, device=trainer.device)
    sharded = trainer.step.features.sharding == "zero3"
    taken_s = []
    for _ in range(count):
        dist.barrier()
        begin_s = time.perf_counter()
        send_as(sharded, whole)
        taken_s.append(time.perf_counter() - begin_s)
    return taken_s


def send_as(sharded: bool, whole: Tensor) -> None:
    """Send `whole` as DDP does, or as FSDP: gather parameters for either pass, and scatter the gradients."""
    if not sharded:
        dist.all_reduce(whole)
        return
    share = whole.chunk(dist.get_world_size())[dist.get_rank()].clone()
    for _ in ("forward pass", "backward pass"):
        dist.all_gather_into_tensor(whole, share)
    dist.reduce_scatter_tensor(share, whole)
