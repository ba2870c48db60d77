"""Record training steps of one rank: its time, torch's trace, and what the system counted meanwhile.

Each step is marked as torch.profiler marks it (`ProfilerStep#k`), and its batches come from a DataLoader. The
counters are read between steps, outside of the marks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, IterableDataset

from harness.instruments.timing.core_account import CoreAccount
from harness.instruments.timing.dependent_chain import CoreSpeed
from suites.profiling.injection_on_rank import Sleeper
from suites.training.trainer import Batch, Trainer

LEFT_OUT = "step before the recording"
"""The mark of a recording's first step, in which caches and the profiler's buffers fill."""


class TextBatches(IterableDataset[Batch]):
    """The trainer's batches of text, each after the sleeper's wait."""

    def __init__(self, trainer: Trainer, wait: Sleeper) -> None:
        self._trainer, self._wait = trainer, wait

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self._wait()
            yield self._trainer.text_batch()


class StepAccount(NamedTuple):
    """One step: its seconds, those that an injector took, and what the system counted over it."""

    seconds: float
    slept_s: float
    load_s: float
    processor_s: float
    waited_for_core_s: float
    throttled_s: float
    relative_clock: float


class Recorder:
    """Records steps of a trainer; `speed` is calibrated when it is made."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._speed = CoreSpeed()
        self._counted = CoreAccount()

    def record(
        self, steps: int, wait: Sleeper, launches: Sleeper, trace: str = "", load: int = 0
    ) -> list[StepAccount]:
        """Run one step that is left out and `steps` more, under the profiler if `trace` names its file."""
        batches = iter(DataLoader(TextBatches(self.trainer, wait), batch_size=None))
        self._load = Path(f"/proc/{load}/schedstat") if load else None
        accounts = []
        with profiled(self.trainer.device) if trace else nullcontext() as profiler:
            for number in range(steps + 1):
                accounts.append(self._step(number, batches, wait, launches))
        if profiler is not None:
            profiler.export_chrome_trace(trace)
        return accounts[1:]

    def _load_s(self) -> float:
        """Return the processor time of the competing process so far."""
        return 0.0 if self._load is None else int(self._load.read_text().split()[0]) / 1e9

    def _step(self, number: int, batches: Iterator[Batch], wait: Sleeper, launches: Sleeper) -> StepAccount:
        slept_s, before = wait.slept_s + launches.slept_s, self._counted.read()
        load_s, processor_s = self._load_s(), time.process_time()
        begin_s = time.perf_counter()
        with record_function(f"ProfilerStep#{number}" if number else LEFT_OUT):
            count = self.trainer.step.workload.gradient_accumulation_steps
            self.trainer.train_step([next(batches) for _ in range(count)])
            if self.trainer.device.type == "cuda":
                torch.cuda.synchronize(self.trainer.device)
        taken_s = time.perf_counter() - begin_s
        after = self._counted.read()
        return StepAccount(
            taken_s,
            wait.slept_s + launches.slept_s - slept_s,
            self._load_s() - load_s,
            time.process_time() - processor_s,
            after.waited_s - before.waited_s,
            after.throttled_s - before.throttled_s,
            self._speed.read().on_core_s,
        )


@contextmanager
def profiled(device: torch.device) -> Iterator[Any]:
    """Run the block under torch's profiler."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        yield profiler
