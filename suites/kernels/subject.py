"""What the kernels suite hands around: a workload, an operation, and how one arm computes it.

Shape suffixes, here and in every operation: N rows, D columns, B batch, H heads, T tokens, K size of a head,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.records import Reading, Remark


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation at one shape; the fields of `conf/suite/kernels.yaml`."""

    operation: str
    batch: int = 1
    seq_len: int = 1  # rows of a row-wise operation: batch * seq_len
    hidden: int = 1  # columns; of attention heads * head_size
    heads: int = 1
    kv_heads: int = 1
    head_size: int = 64
    ffn: int = 1
    vocab: int = 2
    layers: int = 1
    tensors: int = 1  # adamw: over so many
    causal: bool = True
    backward: bool = True  # forward and the gradient of every input that needs one; False: forward alone
    dtype: str = "fp32"  # fp32 | bf16: of the inputs
    part: str = "all"  # training_step: the operation that an arm may replace in it, or all
    device: str = "any"  # any | cuda: chosen for a GPU, unavailable elsewhere
    source: str = ""

    @property
    def rows(self) -> int:
        """Rows of a row-wise operation (N)."""
        return self.batch * self.seq_len

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the inputs."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]

    @property
    def element_B(self) -> int:
        """Bytes of one element of the inputs."""
        return self.torch_dtype.itemsize


@dataclass(frozen=True, slots=True)
class Operation:
    """What is computed, whoever computes it.

    `inputs(workload, generator, device)`: tensors, or lists of tensors; those to be differentiated have
    `requires_grad`. `eager(*inputs)`: plain PyTorch, as a person writes it first. `bytes_moved` and `flops`
    by formula: the least traffic between chip and memory in bytes, and floating-point operations, of the
    forward pass and, where the workload has one, the backward pass; causal attention counts half.
    """

    name: str
    inputs: Callable[[Workload, torch.Generator, torch.device], tuple[Any, ...]]
    eager: Callable[..., Any]
    bytes_moved: Callable[[Workload], float]
    flops: Callable[[Workload], float]
    make_work: Callable[[Subject], Callable[[], object]] | None = None  # None: inputs, function, gradients


@dataclass(frozen=True, slots=True)
class Subject:
    """How one arm computes one operation.

    `function`: same inputs and outputs as `operation.eager`. `around()`: a context for it, such as autocast.
    `precision` is that of its matrix products: fp32 | tf32 | bf16. `timed` is False where it must not be
    timed here. `tolerance` bounds |ours - float64| / max|float64| of each output and gradient.
    `replace`: for the training step, an operation's name to the arm's function for it; `compile_step`
    compiles the step whole. `once` adds to what is read once a cell: registers, time to compile.
    """

    workload: Workload
    seed: int
    operation: Operation
    device: torch.device
    function: Callable[..., Any]
    precision: str = "fp32"
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    timed: bool = True
    tolerance: float = 1e-4
    replace: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    compile_step: bool = False
    once: Callable[[Subject], Iterator[Reading | Remark]] | None = None
