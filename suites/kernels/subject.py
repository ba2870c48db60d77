"""What a variant of the kernels suite is: an operation, and how a variant computes it.

Shape suffixes, here and in every operation: N rows, D columns, B batch, H heads, T tokens, K size of a head,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.records import Note, Reading
from suites.kernels.workload import Workload

SEPARATE, IN_PRODUCT = "separate kernel", "product's kernel"
"""Which kernel computes the activation of linear_gelu."""


Inputs = tuple[Any, ...]

Result = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Outputs, and the gradients of those inputs that need one."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is computed, by whichever variant.

    `inputs(workload, generator, device)`: tensors, or lists of tensors; those to be differentiated have
    `requires_grad`. `eager(*inputs)`: plain PyTorch. `bytes_moved` and `flops`
    by formula: the least traffic between chip and memory in bytes, and floating-point operations, of the
    forward pass and, where the workload has one, the backward pass; causal attention counts half.
    `eager_B`: about what `eager` needs at once, where that may be more than a machine has.
    """

    name: str
    inputs: Callable[[Workload, torch.Generator, torch.device], Inputs]
    eager: Callable[..., Any]
    bytes_moved: Callable[[Workload], float]
    flops: Callable[[Workload], float]
    eager_B: Callable[[Workload], float] = lambda workload: 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """How one variant computes one operation.

    - `function`: same inputs and outputs as `operation.eager`; `around()`: its context, such as autocast;
      `whole()`: that of the whole call, the backward pass included.
    - `bind(subject, inputs, upstream)`: for what is not a function of torch tensors, the call that computes
      outputs and gradients; `as_torch` converts its result.
    - `precision`: of its matrix products, fp32, tf32 or bf16.
    - `timed`: False where it must not be timed here.
    - `tolerance`: bounds |ours - float64| / max|float64| of each output and gradient; for a step see
      `training_step.contract_of`.
    - `shapes`: at which it is checked: the workload's "own", "own and edge cases", or "edge cases" alone.
    - `compiles`: its first call compiles; `compiler_cache`: torch reports whether the code was found on disk.
    - `activation()`: which kernel computes the activation of linear_gelu, known after the first call.
    - `once`: adds readings that are taken once per cell, such as registers and shared memory.
    - `replace`, `techniques`: for the training step, the variant's functions by operation, and techniques of
      the training layer.
    """

    workload: Workload
    seed: int
    operation: Operation
    device: torch.device
    function: Callable[..., Any]
    precision: str = "fp32"
    attention: str = "explicit"
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    whole: Callable[[], AbstractContextManager[Any]] = nullcontext
    bind: Callable[[Subject, Inputs, Sequence[Tensor]], Callable[[], Any]] | None = None
    as_torch: Callable[[Any], Result] | None = None
    writes_inputs: bool = False  # it gets its own inputs; other variants share theirs
    timed: bool = True
    tolerance: float = 1e-4
    shapes: str = "own"
    compiles: bool = False
    compiler_cache: bool = False
    replace: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    techniques: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    activation: Callable[[], str] = lambda: SEPARATE
    once: Callable[[Subject], Iterator[Reading | Note]] | None = None
    notes: tuple[str, ...] = ()
