"""What the kernels suite hands around: a workload, an operation, and how one variant computes it.

Shape suffixes, here and in every operation: N rows, D columns, B batch, H heads, T tokens, K size of a head,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from harness.records import Note, Reading


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation at one shape; the fields of `conf/suite/kernels.yaml`."""

    operation: str
    micro_batch_size: int = 1
    seq_len: int = 1  # rows of a row-wise operation: batch * seq_len
    hidden_size: int = 1  # columns; of attention heads * head_size
    num_attention_heads: int = 1
    num_key_value_heads: int = 1
    head_size: int = 64
    intermediate_size: int = 1
    vocab_size: int = 2
    num_hidden_layers: int = 1
    tensors: int = 1  # adamw: over so many
    causal: bool = True
    backward: bool = True  # forward and the gradient of every input that needs one; False: forward alone
    dtype: str = "fp32"  # fp32 | bf16: of the inputs
    part: str = "all"  # training_step: the operation that a variant may replace in it, or all
    device: str = "any"  # any | cuda: chosen for a GPU, unavailable elsewhere
    source: str = ""

    @property
    def rows(self) -> int:
        """Rows of a row-wise operation (N)."""
        return self.micro_batch_size * self.seq_len

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the inputs."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]

    @property
    def element_B(self) -> int:
        """Bytes of one element of the inputs."""
        return self.torch_dtype.itemsize

    @property
    def elements(self) -> int:
        """Of one tensor of a row-wise operation, N D."""
        return self.rows * self.hidden_size


Inputs = tuple[Any, ...]

Result = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Outputs, and the gradients of those inputs that need one."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is computed, whoever computes it.

    `inputs(workload, generator, device)`: tensors, or lists of tensors; those to be differentiated have
    `requires_grad`. `eager(*inputs)`: plain PyTorch, as a person writes it first. `bytes_moved` and `flops`
    by formula: the least traffic between chip and memory in bytes, and floating-point operations, of the
    forward pass and, where the workload has one, the backward pass; causal attention counts half.
    `eager_B`: about what `eager` holds at once, where that may be more than a machine has.
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

    `function`: same inputs and outputs as `operation.eager`; `around()`: a context for it, such as autocast.
    `bind(subject, inputs, upstream)`: for what is no function of torch tensors, the call that computes
    outputs and gradients, and `as_torch` of what it returns. `precision` is that of its matrix products: fp32
    | tf32 | bf16. `timed` is False where it must not be timed here. `tolerance` bounds |ours - float64| /
    max|float64| of each output and gradient. `shapes`: at which it is checked: the workload's "own", "own and
    edge cases", or "edge cases" alone. `compiles`: its first call is longer by that; `compiler_cache`: and
    torch tells whether compiled code was found on disk. `once` adds to what is read once a cell: registers,
    shared memory. `replace`, `compile_step`, `optimizer`: for the training step, an operation's name to the
    variant's function for it; torch.compile's mode, where forward and backward pass are compiled whole; what
    makes an optimizer of the parameters, where that is not torch.optim.AdamW as it comes.
    """

    workload: Workload
    seed: int
    operation: Operation
    device: torch.device
    function: Callable[..., Any]
    precision: str = "fp32"
    attention: str = "explicit"
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    bind: Callable[[Subject, Inputs, Sequence[Tensor]], Callable[[], Any]] | None = None
    as_torch: Callable[[Any], Result] | None = None
    writes_inputs: bool = False  # it gets inputs of its own; other variants share theirs
    timed: bool = True
    tolerance: float = 1e-4
    shapes: str = "own"
    compiles: bool = False
    compiler_cache: bool = False
    replace: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    compile_step: str | None = None
    optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None
    once: Callable[[Subject], Iterator[Reading | Note]] | None = None
    notes: tuple[str, ...] = ()
