"""The kernels suite's types: a workload, an operation, and how a variant computes it.

Shape suffixes, here and in every operation: N rows, D columns, B batch, H heads, T tokens, K size of a head,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from harness.bounds import Bounds, OnlyWith, PositiveInt
from harness.records import Note, Reading
from suites.training.workload import AttentionHeads, HiddenSize

OF_STEPS = OnlyWith("operation", ("training_step",))
OF_HEADS = OnlyWith("operation", ("attention", "rotary", "training_step"))
OF_LOGITS = OnlyWith("operation", ("linear_cross_entropy", "training_step"))
"""Fields of some operations."""

SEPARATE, IN_PRODUCT = "separate kernel", "product's kernel"
"""Which kernel computes the activation of linear_gelu."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation at one shape."""

    operation: Literal[
        "softmax", "rms_norm", "layer_norm", "swiglu", "gelu_bias", "linear_gelu", "rotary",
        "linear_cross_entropy", "adamw", "pointwise", "attention", "training_step", "copy", "matmul",
    ]  # fmt: skip
    micro_batch_size: PositiveInt = 1
    # Rows of a row-wise operation: micro_batch_size * seq_len.
    seq_len: Annotated[int, Bounds(at_least=1, not_above="max_position_embeddings")] = 1
    hidden_size: HiddenSize = 1  # columns; for attention, heads * head_size
    num_attention_heads: Annotated[AttentionHeads, OF_HEADS] = 1
    num_key_value_heads: Annotated[PositiveInt, OF_HEADS] = 1
    # Rotary halves it; a training step divides its hidden size by its heads.
    head_size: Annotated[
        int, Bounds(at_least=2, divisible_by=2), OnlyWith("operation", ("attention", "rotary"))
    ] = 64
    # Of matmul and linear_gelu the columns of the result.
    intermediate_size: Annotated[
        PositiveInt, OnlyWith("operation", ("linear_gelu", "matmul", "training_step"))
    ] = 1
    vocab_size: Annotated[int, Bounds(at_least=2), OF_LOGITS] = 2
    num_hidden_layers: Annotated[PositiveInt, OF_STEPS] = 1
    # Number of tensors, each (micro_batch_size * seq_len, hidden_size).
    tensors: Annotated[PositiveInt, OnlyWith("operation", ("adamw",))] = 1
    causal: Annotated[bool, OnlyWith("operation", ("attention",))] = True
    backward: bool = True  # forward and the gradient of every input that needs one; False: forward only
    dtype: Literal["fp32", "bf16"] = "fp32"  # of the inputs
    # The operation that a variant may replace in a training step, or all.
    part: Annotated[
        Literal["all", "rms_norm", "swiglu", "rotary", "linear_cross_entropy", "attention", "adamw"],
        OF_STEPS,
    ] = "all"
    # A Hugging Face config.json, whose model of transformers takes the place of these sizes.
    hf_config: Annotated[dict[str, Any] | None, OF_STEPS] = field(default=None, hash=False)
    # Of hf_config: the longest sequence.
    max_position_embeddings: Annotated[PositiveInt | None, OF_STEPS] = None
    device: Literal["any", "cuda"] = "any"  # cuda: sized for a GPU, not run elsewhere
    source: str = ""

    @property
    def rows(self) -> int:
        """Return the rows of a row-wise operation (N)."""
        return self.micro_batch_size * self.seq_len

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the type of the inputs."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]

    @property
    def element_B(self) -> int:
        """Return the bytes of one element of the inputs."""
        return self.torch_dtype.itemsize

    @property
    def elements(self) -> int:
        """Return the elements of one tensor of a row-wise operation, N D."""
        return self.rows * self.hidden_size


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
