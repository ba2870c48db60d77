"""The stack suite: what techniques of a training step are worth alone, together, and on top of each other.

The baseline is eager PyTorch in fp32 with explicit attention, its batches made in the step. Variants are all
combinations of six techniques, on the same sequences, so tokens/s are those of equal work. A batch is text of
`suites.training.data`, made word by word in Python, as a tokenizer works through text.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.instruments.memory.allocator import watch
from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.stack.workload import Workload
from suites.training import data
from suites.training.correctness import GRADIENT_FACTOR, compare, require_learning
from suites.training.correctness import UPDATES as LEARNING_UPDATES
from suites.training.correctness import check as check_small
from suites.training.optimizers import share_states
from suites.training.step import TrainingStep, Within, loosest
from suites.training.techniques import Techniques, build_step, combined
from suites.training.trainer import Trainer
from suites.training.workload import refuse_odd_heads

Batch = tuple[Tensor, Tensor]  # tokens and their successors, int64, each (sequences, T)

Arrays = tuple[NDArray[np.int64], NDArray[np.int64]]


def make_batch(vocab_size: int, size: tuple[int, int], seed: int, number: int) -> Arrays:
    """Return the batch of one update: tokens and their successors, each of `size`."""
    tokens, targets = data.batch(vocab_size, size, seed, number)
    return tokens.numpy(), targets.numpy()


class UpdateLoader:
    """Gives the batches of one update after the other, made in the step as by a DataLoader without workers.

    `loads_ahead`: another process makes the next batch while the step runs. A step then ends once that is
    ready, so each timed step has the work of one batch in it, and none is done during another variant's turn.
    """

    def __init__(self, subject: Subject) -> None:
        given = subject.workload
        self._arguments = given.vocab_size, (given.sequences, given.seq_len), subject.seed
        self._device, self._ahead, self._taken = subject.device, subject.loads_ahead, 0
        self._ready = make_batch(*self._arguments, 0) if self._ahead else None
        self._begun: Future[Arrays] | None = None

    def take(self) -> Batch:
        """Return the batch of the next update, on the device."""
        arrays = self._ready or make_batch(*self._arguments, self._taken)
        self._taken += 1
        if self._ahead:
            self._begun = worker().submit(make_batch, *self._arguments, self._taken)
        tokens, targets = (torch.from_numpy(one).to(self._device) for one in arrays)
        return tokens, targets

    def finish(self) -> None:
        """Wait until what was begun during the step is ready: a step ends with it."""
        if self._begun is not None:
            self._ready, self._begun = self._begun.result(), None


@lru_cache(maxsize=1)
def worker() -> ProcessPoolExecutor:
    """Return the process that makes batches for all variants that load ahead: one of them runs at a time.

    It is forked, as a DataLoader's are, and computes on one thread.
    """
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"), torch.set_num_threads, (1,))


def stop_worker() -> None:
    """End that process, if it was started."""
    if worker.cache_info().currsize:
        worker().shutdown(wait=True, cancel_futures=True)
        worker.cache_clear()


@dataclass(frozen=True, slots=True)
class Subject:
    """How one variant trains.

    - `techniques`: of the training layer.
    - `loads_ahead`: another process makes the next batch during the step.
    - `fills_memory`: the micro-batch is the largest whose peak memory is not above the baseline's.
    - `whole()`: the context of all passes of an update, such as TF32; `products`: the precision of products
      outside of autocast; `tolerance`: what that precision adds to a loss's, as a share of the first loss.
    """

    workload: Workload
    seed: int
    device: torch.device
    techniques: Techniques = ()
    loads_ahead: bool = False
    fills_memory: bool = False
    whole: Callable[[], AbstractContextManager[None]] = nullcontext
    products: str = "fp32"
    tolerance: float = 0.0

    @property
    def precision(self) -> str:
        """Return the precision of the step's matrix products: fp32, tf32 or bf16."""
        return self.products if self.step_of(1).features.precision == "fp32" else "bf16"

    def step_of(self, times: int) -> TrainingStep:
        """Return the step whose micro-batches have `times` as many sequences, and are as many times fewer."""
        given = self.workload
        if given.gradient_accumulation_steps % times:
            raise ValueError(f"{given.gradient_accumulation_steps} micro-batches are no multiple of {times}")
        changed = {
            "micro_batch_size": given.micro_batch_size * times,
            "gradient_accumulation_steps": given.gradient_accumulation_steps // times,
        }
        step = build_step({**asdict(given), **changed}, self.techniques, self.seed)
        if step.ranks > 1 or step.features.sharding != "none" or step.batches_per_update > 1:
            raise Unavailable("this suite's steps run in one process, on the same sequences in every variant")
        return step

    @property
    def sizes(self) -> list[int]:
        """Return by what the micro-batch may grow: the powers of two that divide the micro-batches."""
        count = self.workload.gradient_accumulation_steps
        return [2**power for power in range(count.bit_length()) if count % 2**power == 0]


UPDATES = 3
"""Updates whose losses are compared: the first shows the gradients, the others the optimizer."""


class StackTrainer:
    """A trainer of the training layer with the loader of its batches; `step()` is the work that is timed."""

    def __init__(self, subject: Subject, times: int) -> None:
        self.step_description = subject.step_of(times)
        self.trainer = Trainer(self.step_description, subject.device)
        self.count = self.step_description.workload.gradient_accumulation_steps
        self.loader = UpdateLoader(subject)
        self._whole = subject.whole

    def accumulate(self, batch: Batch) -> Tensor:
        """Run the passes of all micro-batches of a batch; return their mean loss, a scalar tensor."""
        micro_batches = zip(*(one.chunk(self.count) for one in batch), strict=True)
        with self._whole():
            return self.trainer.accumulate(((a, b) for a, b in micro_batches), self.count)

    def step(self) -> Tensor:
        """Load a batch, train on it, and return its loss, a scalar tensor."""
        loss = self.accumulate(self.loader.take())
        self.trainer.update()
        self.loader.finish()
        return loss


@dataclass(slots=True)
class Session:
    """The state of one variant; `prepare` fills it."""

    subject: Subject
    times: int = 1  # by how much the micro-batch has grown
    peak_B: float = 0.0  # live bytes of an update beyond those before it
    max_error: float = 0.0
    tried: dict[int, float] = field(default_factory=dict)  # growth -> peak_B
    stopwatch: Stopwatch | None = None
    _trainer: StackTrainer | None = None

    @property
    def trainer(self) -> StackTrainer:
        """Return the trainer, built at first use."""
        if self._trainer is None:
            self._trainer = StackTrainer(self.subject, self.times)
        return self._trainer

    def release(self) -> None:
        """Let the tensors go."""
        if self._trainer is not None:
            self._trainer.trainer.close()
        self._trainer = self.stopwatch = None


class BaselineUpdates(NamedTuple):
    """Plain PyTorch's losses, the gradients of its first update, and its peak of live bytes."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]
    peak_B: float


def check(session: Session) -> None:
    """Compare the first updates with the baseline's, from the same weights and on the same text.

    Raises `WrongResult` where a loss, or all gradients of the first update together, are off by more than the
    contract of the step allows; a step that changes the mathematics must learn. Before that, a variant that
    fills memory has its micro-batch chosen.
    """
    subject = session.subject
    expected = baseline_updates(baseline_of(subject))
    if subject.fills_memory:
        session.times = largest_that_fits(session, expected.peak_B)
    contract = loosest([subject.step_of(1).contract, Within(subject.tolerance)])
    trainer = session.trainer
    batch = trainer.loader.take()
    losses = [trainer.accumulate(batch).item()]
    trainer.loader.finish()
    if contract.compared:
        off = compared_gradients(trainer, expected.gradients, contract.relative)
        trainer.trainer.update()
        losses += [trainer.step().item() for _ in range(2, UPDATES)]
        last, session.peak_B = watched_step(trainer, subject)
        session.max_error = max(off, compare([*losses, last], expected.losses, contract.relative))
    else:
        for _ in range(1, LEARNING_UPDATES):
            trainer.trainer.update()
            losses.append(trainer.accumulate(batch).item())
        trainer.trainer.update()
        require_learning(losses)
        _, session.peak_B = watched_step(trainer, subject)
    session.peak_B = session.tried.get(session.times, session.peak_B)
    share_states(trainer.trainer.plain, trainer.trainer.optimizer, shared_tensors(baseline_of(subject)))


def compared_gradients(trainer: StackTrainer, expected: Mapping[str, Tensor], relative: float) -> float:
    """Return how far all gradients are off; raises `WrongResult` where that is too far.

    If the step releases its gradients, its techniques are checked by the losses of a small model.
    """
    try:
        gradients = trainer.trainer.gradients()
    except Unavailable:
        check_small(trainer.step_description)
        return 0.0
    # |ours - plain| / |plain| of all parameters' gradients together
    off = math.hypot(*(float((gradients[name].float() - one).norm()) for name, one in expected.items()))
    off /= math.hypot(*(float(one.norm()) for one in expected.values()))
    if not off <= GRADIENT_FACTOR * relative:
        allowed = f"allowed {GRADIENT_FACTOR * relative:.0e}"
        raise WrongResult(f"the first gradients are off by {off:.1e} of their norm, {allowed}")
    return off


def baseline_of(subject: Subject) -> Subject:
    """Return the baseline of the same workload."""
    return Subject(subject.workload, subject.seed, subject.device)


def largest_that_fits(session: Session, room_B: float) -> int:
    """Return the most by which the micro-batch grows with a peak within `room_B`, by doubling.

    A size is tried where a peak in proportion to the sequences, but for the gradients, would fit.
    """
    subject, best = session.subject, 1
    for times in subject.sizes:
        if times > 1 and 2 * session.tried[best] - gradients_B(subject) > room_B:
            break
        trial = StackTrainer(replace(subject, loads_ahead=False), times)
        trial.step()  # makes all states
        session.tried[times] = watched_step(trial, subject)[1]
        trial.trainer.close()
        del trial
        if session.tried[times] > room_B:
            break
        best = times
    return best


def gradients_B(subject: Subject) -> float:
    """Return the bytes of the gradients, which any micro-batch has."""
    return 4.0 * subject.workload.shape.parameters


def watched_step(trainer: StackTrainer, subject: Subject) -> tuple[float, float]:
    """Run an update; return its loss, and the most live bytes beyond those before it."""
    before_B = torch.cuda.memory_allocated(subject.device) if subject.device.type == "cuda" else 0
    with watch(subject.device) as watched:
        watched.mark("update")
        loss = trainer.step().item()
    return loss, float(max(watched.peaks[0].live_B - before_B, 0))


@lru_cache(maxsize=1)
def baseline_updates(subject: Subject) -> BaselineUpdates:
    """Return the baseline's first updates, taken once for all variants of one process."""
    trainer = StackTrainer(subject, 1)
    losses = [trainer.accumulate(trainer.loader.take()).item()]
    gradients = {name: one.clone() for name, one in trainer.trainer.gradients().items()}
    trainer.trainer.update()
    losses += [trainer.step().item() for _ in range(2, UPDATES)]
    last, peak_B = watched_step(trainer, subject)
    trainer.trainer.close()
    return BaselineUpdates((*losses, last), gradients, peak_B)


@lru_cache(maxsize=1)
def shared_tensors(subject: Subject) -> dict[tuple[str, str], Tensor]:
    """Return the states that the variants of one process share once they were checked; at first none."""
    return {}


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for a size chosen for a GPU, and for odd head sizes."""
    given = Workload(**workload)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.device == "cuda" and device.type != "cuda":
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    refuse_odd_heads(given)
    return Subject(given, seed, device)


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of the bf16 matrix products in one sample; 0 where a GPU computes them."""
    narrow = subject.precision == "bf16" and subject.device.type == "cpu"
    return subject.workload.flop if narrow else 0.0


def apply_techniques(subject: Subject, techniques: Techniques) -> Subject:
    """Return the subject with further techniques of its step; raises `Unavailable` where they do not fit."""
    changed = replace(subject, techniques=combined(subject.techniques, techniques))
    changed.step_of(1)
    return changed


def prepare(subject: Subject) -> Session:
    """Return the variant's session; its trainer is built by `check`."""
    return Session(subject)


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about speed may name."""
    subject = session.subject
    given, device = subject.workload, subject.device
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "precision": subject.precision,
        "attention": subject.step_of(1).features.attention,
        "seq_len": str(given.seq_len),
        "micro_batch_size": str(given.micro_batch_size * session.times),
        "sequences": str(given.sequences),
        "loading": "ahead" if subject.loads_ahead else "in the step",
        "threads": str(torch.get_num_threads()),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Yield what is read once: counts by formula, the check's error, peak memory, time to load a batch."""
    subject = session.subject
    given = subject.workload
    yield Reading("flops", "1", given.flop, Origin.CALCULATED)
    yield Reading("tokens_per_step", "1", given.tokens, Origin.CALCULATED)
    yield Reading("parameters", "1", given.shape.parameters, Origin.CALCULATED)
    yield Reading("max_error", "1", session.max_error, Origin.MEASURED, "baseline")
    yield Reading("peak_memory", "B", session.peak_B, Origin.MEASURED)
    begin_s = time.perf_counter()
    make_batch(given.vocab_size, (given.sequences, given.seq_len), subject.seed, 0)
    yield Reading("loading_time", "s", time.perf_counter() - begin_s, Origin.MEASURED)
    for times, peak_B in session.tried.items():
        yield Note(f"{given.micro_batch_size * times} sequences at once take {peak_B / 1e6:.0f} MB at peak")
    session.stopwatch = stopwatch(session.trainer.step, subject.device)


def sample(session: Session) -> Iterator[Reading | Note]:
    """Time one window of updates: seconds per update, the loading of its batch included."""
    if session.stopwatch is None:
        raise RuntimeError("sample() is called before read_once()")
    yield from session.stopwatch.window()


def close(session: Session) -> None:
    """Release the trainer, what variants share, and the process that loads."""
    session.release()
    baseline_updates.cache_clear()
    shared_tensors.cache_clear()
    stop_worker()
