"""What the ranks of tests/suites/overlap/test_overlap_training_step.py are asked to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from suites.overlap.operations import training_step
from suites.overlap.operations.training_step import TensorParallelStep, gradient_of


def faulty_errors(state: dict[str, Any], key: str, fault: str, chunks: int) -> list[float]:
    """Return a step's error for each collective with a fault: "stale" or "swapped"."""
    step: TensorParallelStep = state[key]
    layers = [layer for layers in step.layers for layer in layers]
    errors = []
    for collective in [one for layer in layers for one in (layer.gather, layer.scatter)]:
        for _ in range(2):  # the step before the faulty one has the other batch
            run(step, chunks)
        with {"stale": stale, "swapped": swapped}[fault](collective):
            run(step, chunks)
        errors.append(step.error())
    return errors


@contextmanager
def stale(collective: Any) -> Iterator[None]:
    """Nothing arrives, and nothing waits: the step reads what the one before has left."""
    link = collective.link
    link.wait = without(link.wait, collective._arrived)
    collective._put = lambda *given: None
    yield
    del link.wait, collective._put


@contextmanager
def swapped(collective: Any) -> Iterator[None]:
    """Chunks go where those at equal distance from the other end belong."""
    put, first = collective._put, collective.rank * collective.rows

    def elsewhere(peer: int, buffer: int, row: int, source: torch.Tensor, signal: int) -> None:
        put(peer, buffer, 2 * first + collective.rows - row - len(source), source, signal)

    collective._put = elsewhere
    yield
    del collective._put


def without(wait: Any, signals: range) -> Any:
    """Return a wait that returns at once for these signals."""
    return lambda signal, value: value if signal in signals else wait(signal, value)


def run(step: TensorParallelStep, chunks: int) -> None:
    step.link.reset()
    dist.barrier()
    step.run(chunks)


def update_errors(state: dict[str, Any], key: str) -> list[float]:
    """Return how far each weight is from the last one minus its gradient."""
    step: TensorParallelStep = state[key]
    before = [weight.detach().clone() for block in step.blocks for weight in block]
    rate, training_step.LEARNING_RATE = training_step.LEARNING_RATE, 1.0
    try:
        run(step, 1)
    finally:
        training_step.LEARNING_RATE = rate
    after = [weight for block in step.blocks for weight in block]
    return [
        float((new - (old - gradient_of(new))).abs().max()) + float(torch.equal(new, old))
        for new, old in zip(after, before, strict=True)
    ]
