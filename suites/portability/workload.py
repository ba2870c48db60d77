"""A workload of the portability suite: one operation, block or training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from suites.training.workload import AttentionHeads, HiddenSize

if TYPE_CHECKING:
    import torch

OF_STEPS = OnlyWith("operation", ("training_step",))
OF_HEADS = OnlyWith("operation", ("attention", "block", "training_step"))
OF_WIDTHS = OnlyWith("operation", ("matmul", "block", "training_step"))


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation, block or training step at one shape."""

    operation: Literal[
        "softmax", "rms_norm", "matmul", "attention", "cross_entropy", "swiglu", "block", "training_step"
    ]
    # How much is captured: forward; the gradient of every input; of a step AdamW's update too.
    passes: Literal["forward", "backward", "update"] = "backward"
    micro_batch_size: PositiveInt = 1
    # Rows of a row-wise operation: micro_batch_size * seq_len.
    seq_len: Annotated[int, Bounds(at_least=1, not_above="max_position_embeddings")] = 1
    hidden_size: HiddenSize = 1  # columns; of attention all heads' together
    num_attention_heads: Annotated[AttentionHeads, OF_HEADS] = 1
    num_key_value_heads: Annotated[PositiveInt, OF_HEADS] = 1
    intermediate_size: Annotated[PositiveInt, OF_WIDTHS] = 1  # of matmul the columns of the result
    vocab_size: Annotated[
        int, Bounds(at_least=2), OnlyWith("operation", ("cross_entropy", "training_step"))
    ] = 2
    num_hidden_layers: Annotated[PositiveInt, OF_STEPS] = 1
    dtype: Literal["fp32", "bf16"] = "fp32"  # of weights, activations and moments
    # A Hugging Face config.json, whose model of transformers takes the place of these sizes.
    hf_config: Annotated[dict[str, Any] | None, OF_STEPS] = field(default=None, hash=False)
    max_position_embeddings: Annotated[PositiveInt | None, OF_STEPS] = (
        None  # of hf_config: the longest sequence
    )
    source: str = ""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the type of weights and activations."""
        import torch

        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]
