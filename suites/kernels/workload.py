"""A workload of the kernels suite: one operation, or one training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from suites.training.workload import AttentionHeads, HiddenSize

if TYPE_CHECKING:
    import torch

OF_STEPS = OnlyWith("operation", ("training_step",))
OF_HEADS = OnlyWith("operation", ("attention", "rotary", "training_step"))
OF_LOGITS = OnlyWith("operation", ("linear_cross_entropy", "training_step"))
"""Fields of some operations."""


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
        import torch

        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]

    @property
    def element_B(self) -> int:
        """Return the bytes of one element of the inputs."""
        return {"fp32": 4, "bf16": 2}[self.dtype]

    @property
    def elements(self) -> int:
        """Return the elements of one tensor of a row-wise operation, N D."""
        return self.rows * self.hidden_size
