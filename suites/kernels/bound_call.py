"""The work of one call: outputs, and the gradients of all inputs that need one; made once per subject."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from harness.instruments.timing.stopwatch import Stopwatch
from harness.instruments.torch_internals import compilations_from_cache
from harness.records import WrongResult
from suites.kernels.subject import Inputs, Operation, Result, Subject
from suites.kernels.training_step import OPERATION as STEP
from suites.kernels.training_step import FixedBatchTrainer
from suites.kernels.workload import Workload

Work = Callable[[], Any]


def make_inputs(operation: Operation, workload: Workload, seed: int, device: torch.device) -> Inputs:
    """Return the operation's inputs; the same for the same seed."""
    return operation.inputs(workload, torch.Generator(device).manual_seed(seed), device)


def tensors_of(values: Any) -> Iterable[Tensor]:
    """Return the tensors among `values`, in order, with lists and tuples flattened."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_of(value)


def mapped(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return `values` with `change` applied to each tensor."""
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, list | tuple):
        return type(values)(mapped(change, value) for value in values)
    return values


def leaves_of(inputs: Inputs) -> list[Tensor]:
    """Return the inputs that require gradients."""
    return [one for one in tensors_of(inputs) if one.requires_grad]


def make_upstream(operation: Operation, inputs: Inputs, seed: int) -> list[Tensor]:
    """Return a fixed gradient for each output: normal, or 1 for a loss; finds shapes without computing."""
    if not leaves_of(inputs):
        return []
    outputs = operation.eager(*mapped(lambda one: one.detach().to("meta"), inputs))
    first = next(iter(tensors_of(inputs)))
    generator = torch.Generator(first.device).manual_seed(seed + 1)
    return [
        torch.randn(one.shape, generator=generator, device=first.device).to(one.dtype)
        if one.dim()
        else torch.ones((), dtype=one.dtype, device=first.device)
        for one in tensors_of(outputs)
    ]


def bind(subject: Subject, inputs: Inputs, upstream: Sequence[Tensor]) -> Work:
    """Return a call that computes `Result` by the variant's function, and nothing else."""
    if subject.bind is not None:
        return subject.bind(subject, inputs, upstream)
    function, around, leaves, whole = subject.function, subject.around, leaves_of(inputs), subject.whole
    fitting: list[Tensor] = []

    def call() -> Result:
        with whole():
            with around():
                outputs = list(tensors_of(function(*inputs)))
            if not leaves:
                return outputs, []
            if not fitting:
                fitting.extend(fitted(upstream, outputs))
            return outputs, torch.autograd.grad(outputs, leaves, fitting)

    return call


def fitted(upstream: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients in the types of the outputs; raises `WrongResult` where shapes differ."""
    ours, expected = ([tuple(one.shape) for one in group] for group in (outputs, upstream))
    if ours != expected:
        raise WrongResult(f"outputs have shapes {ours}, not {expected}")
    return [one.to(output.dtype) for one, output in zip(upstream, outputs, strict=True)]


@lru_cache(maxsize=1)
def shared(
    operation: Operation, workload: Workload, seed: int, device: torch.device
) -> tuple[Inputs, list[Tensor]]:
    """Return inputs and upstream gradients, the same tensors for every variant of a workload.

    The location of tensors in memory makes identical code differ by several percent (docs/trust.md).
    """
    inputs = make_inputs(operation, workload, seed, device)
    return inputs, make_upstream(operation, inputs, seed)


def as_torch(subject: Subject, result: Any) -> Result:
    """Return what the work returned, as tensors."""
    return result if subject.as_torch is None else subject.as_torch(result)


def seconds_of(work: Work, device: torch.device) -> tuple[float, Any]:
    """Return the seconds of one synchronous call and its result, for times that need not be precise."""
    begin_s = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin_s, result


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
