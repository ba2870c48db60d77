"""Training runs by their computation: model, data and batch; and many inputs as one. Sizes: runs R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer.flop import TRAINING_FLOP
from suites.limits.formula import Model
from suites.limits.workload import Workload
from suites.training.step_time.collectives import Amount

WIDTHS = 12
"""Parameters of a layer over the square of its width: attention has 4 matrices, the MLP 2 of 4 widths."""


class RunShape(NamedTuple):
    """A training run, or arrays over runs. Parameters are those that one token uses."""

    training_flop: Amount
    parameters: Amount
    tokens: Amount
    batch_tokens: Amount
    model: Model

    @property
    def steps(self) -> Amount:
        """Return how many steps the run has."""
        return self.tokens / self.batch_tokens

    @property
    def sequences(self) -> Amount:
        """Return the sequences of one batch."""
        return self.batch_tokens / self.model.seq_len

    def step_budget_s(self, given: Workload) -> Amount:
        """Return the seconds that one step may take."""
        return given.run_s / self.steps


def shape_of(given: Workload, training_flop: Amount) -> RunShape:
    """Return the run of so many FLOP: 6 per parameter and token, with `tokens_per_parameter` tokens each."""
    parameters = (training_flop / (TRAINING_FLOP * given.tokens_per_parameter)) ** 0.5
    tokens = given.tokens_per_parameter * parameters
    scale = parameters / given.reference_parameters
    layers = np.maximum(1.0, given.reference_layers * scale**given.depth_exponent)
    hidden = (parameters / (WIDTHS * layers)) ** 0.5
    batch = given.batch_tokens * np.maximum(1.0, scale) ** given.batch_exponent
    model = Model(
        layers=layers,
        hidden=hidden,
        qkv=3 * hidden,
        up=4 * hidden,
        intermediate=4 * hidden,
        vocab=0,
        seq_len=given.seq_len,
        sparsity=given.experts / given.experts_per_token,
        experts_per_token=given.experts_per_token,
    )
    return RunShape(training_flop, parameters, tokens, np.minimum(batch, tokens), model)


def latency_flop(given: Workload) -> float:
    """Return the largest run that latency of kernels alone allows, by a closed formula.

    However many GPUs share a step, its layers follow one another, and each takes 4 matmuls forward and 8
    backward, each of them at least `kernel_s`. Infinite without such a latency.
    """
    if given.kernel_s == 0:
        return float("inf")
    e, b, scale = given.depth_exponent, given.batch_exponent, given.reference_parameters
    layer_s = 12 * given.kernel_s
    # tokens_per_parameter * N / (batch * (N / scale)^b) * layers * (N / scale)^e * layer_s = run_s
    at_scale_s = given.tokens_per_parameter * scale / given.batch_tokens * given.reference_layers * layer_s
    ratio = given.run_s / at_scale_s
    parameters = scale * ratio ** (1 / (1 + e - b)) if ratio >= 1 else scale * ratio ** (1 / (1 + e))
    return float(TRAINING_FLOP * given.tokens_per_parameter * parameters**2)


def stacked(works: Sequence[Workload]) -> Workload:
    """Return one workload; an input in which they differ is an array (R,), the others are numbers."""
    changed: dict[str, Any] = {}
    for one in fields(Workload):
        values = [getattr(work, one.name) for work in works]
        if any(value != values[0] for value in values):
            changed[one.name] = np.array(values, dtype=float)
    return replace(works[0], **changed)


def taken(stack: Workload, runs: NDArray[np.intp]) -> Workload:
    """Return the workload of each of these runs, in their order."""
    arrays: dict[str, Any] = {
        one.name: value[runs]
        for one in fields(Workload)
        if isinstance(value := getattr(stack, one.name), np.ndarray)
    }
    return replace(stack, **arrays) if arrays else stack


def at(value: Amount, index: NDArray[np.intp]) -> Amount:
    """Return an array's elements, or the number that all have."""
    return value[index] if isinstance(value, np.ndarray) and value.ndim else value
