"""Record training steps of one rank: its time, torch's trace, and what the system counted meanwhile.

Each step is marked as torch.profiler marks it (`ProfilerStep#k`), and its batches come from a DataLoader. The
counters are read between steps, outside of the marks; a device's clocks are sampled by a thread.

The profiling suite's types: a training step to record, and what is injected into it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, IterableDataset

from harness.instruments.timing.core_account import chain_s, core_counts
from harness.instruments.timing.device_telemetry import DeviceSampler, state_reader, telemetry_means
from harness.records import Unavailable
from suites.profiling.injection.injection_on_rank import Sleeper
from suites.profiling.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, apply_techniques, build_step
from suites.training.trainer import Batch, Trainer

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

    `load_s` is the processor time of a competing process. `chain_s` is the time of a chain of dependent
    operations after the step, inverse to the core's clock.
    """

    seconds: float
    slept_s: float
    load_s: float
    waited_for_core_s: float
    throttled_s: float
    chain_s: float


class Recorder:
    """Records steps of a trainer from its start to `end`, under the profiler if `profiler` is true.

    `wait` and `launches` are called before batches and launches; `load` is a competing process's id, or 0.
    """

    def __init__(self, trainer: Trainer, wait: Sleeper, launches: Sleeper, load: int, profiler: bool) -> None:
        self._trainer = trainer
        self._wait, self._launches = wait, launches
        self._load = Path(f"/proc/{load}/schedstat") if load else None
        self._batches = iter(DataLoader(TextBatches(trainer, wait), batch_size=None))
        self._stack = ExitStack()
        read = state_reader(trainer.device)
        self._sampler = self._stack.enter_context(DeviceSampler(read)) if read else None
        self._profiler: Any = self._stack.enter_context(profiled(trainer.device)) if profiler else None
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


def profiled(device: torch.device) -> Any:
    """Return torch's profiler for work on the device."""
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *cuda])


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

    def with_techniques(self, techniques: Techniques) -> Subject:
        """Return the subject with the techniques of an optimization's list."""
        return replace(self, step=apply_techniques(self.step, techniques))

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
