"""One variant in a process: its work, created at first use, and the result of its check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.instruments.timing.stopwatch import Stopwatch
from harness.instruments.torch_internals import compilations_from_cache
from suites.kernels.bound_call import Work, bind, seconds_of, shared
from suites.kernels.step.training_step import OPERATION as STEP
from suites.kernels.step.training_step import FixedBatchTrainer
from suites.kernels.subject import Subject


@dataclass(slots=True)
class Session:
    """The state of one variant. `first_call_s` is None until its first call, which compiles, was timed.

    `compiled_from_cache`: torch found the compiled code on disk. `max_error` and `compared` are the check's.
    """

    subject: Subject
    first_call_s: float | None = None
    compiled_from_cache: bool = False
    max_error: float = 0.0
    compared: str = ""
    stopwatch: Stopwatch | None = None
    _work: Work | None = None
    _trainer: FixedBatchTrainer | None = None

    @property
    def work(self) -> Work:
        """Return the call that is checked and timed, at the workload's own shape."""
        subject = self.subject
        if self._work is None and subject.operation is STEP:
            self._work = self.trainer.step
        elif self._work is None:
            make = shared.__wrapped__ if subject.writes_inputs else shared
            inputs, upstream = make(subject.operation, subject.workload, subject.seed, subject.device)
            self._work = bind(subject, inputs, upstream)
        return self._work

    @property
    def trainer(self) -> FixedBatchTrainer:
        """Return the trainer of a training step."""
        if self._trainer is None:
            self._trainer = FixedBatchTrainer(self.subject)
        return self._trainer

    def first_call(self, work: Work) -> Any:
        """Return what the first call of `work` returns; keep its time, and whether its code was cached."""
        hits = compilations_from_cache() if self.subject.compiler_cache else 0
        self.first_call_s, result = seconds_of(work, self.subject.device)
        self.compiled_from_cache = self.subject.compiler_cache and compilations_from_cache() > hits
        return result

    def release(self) -> None:
        """Let the tensors go."""
        self._work = self._trainer = self.stopwatch = None
