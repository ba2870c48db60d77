"""The sizes of the tensors of one layer of transformers' code, for a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.transformers_code.tape import StepPrecision

CodeName = Literal["llama", "gemma", "mixtral", "qwen3_moe"]
"""Whose code a layer has. gemma: norms that are multiplied by 1 + weight in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """A layer and the micro-batch that it gets."""

    shape: TransformerShape
    precision: StepPrecision
    sequences: int
    seq_len: int
    attention_kernel: Literal["flash", "explicit"] = "flash"
    code: CodeName = "llama"
    accumulates: bool = False  # weights' gradients are added to those of an earlier micro-batch, in place
    when_gradient: Callable[[float], None] | None = None  # called with the elements of each weight's gradient

    @property
    def tokens(self) -> int:
        """Return the tokens of the micro-batch."""
        return self.sequences * self.seq_len

    def size_B(self, elements: int, element_B: int) -> float:
        """Return the bytes of a tensor with so many elements per token."""
        return float(self.tokens * elements * element_B)

    @property
    def stream_B(self) -> float:
        """Return the bytes of the residual stream."""
        return self.size_B(self.shape.hidden_size, self.precision.stream_B)

    @property
    def query_B(self) -> float:
        """Return the bytes of all queries."""
        return self.size_B(self.shape.query_size, self.precision.product_B)

    @property
    def key_B(self) -> float:
        """Return the bytes of all keys, which are those of the values."""
        return self.size_B(self.shape.num_key_value_heads * self.shape.head_dim, self.precision.product_B)

    @property
    def sums_B(self) -> float:
        """Return the bytes of flash attention's fp32 sums of rows."""
        return self.size_B(self.shape.num_attention_heads, 4)

    @property
    def rotary_B(self) -> float:
        """Return the bytes of the cosines and the sines of a sequence's positions, which all layers share."""
        return 2.0 * self.seq_len * self.shape.head_dim * self.precision.stream_B

    @property
    def copies_B(self) -> float:
        """Return the bytes of autocast's copies of a layer's weights."""
        return 2.0 * self.shape.active_matrix_parameters(moe=False) if self.precision.autocast else 0.0

    def added_B(self, weight_B: float) -> float:
        """Return what of a weight's gradient is released at once, as it is added to an earlier one."""
        gradient_B = 2 * weight_B if self.precision.autocast else weight_B
        return gradient_B if self.accumulates else 0.0

    def weight_B(self, inputs: int, outputs: int) -> float:
        """Return the bytes of a weight in the type of products."""
        return float(inputs * outputs * self.precision.product_B)
