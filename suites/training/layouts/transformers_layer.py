"""One layer of transformers' Llama and its descendants: what each operation takes, keeps and releases.

Facts: transformers 5.23.0, models/llama/modeling_llama.py, qwen2, qwen3, mistral, mixtral and qwen3_moe, and
integrations/moe.py; torch's autograd releases what an operation saved when its backward pass is over. The
order is that of live tensors in dry runs of this code, with torch's CUDA kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.instruments.transformer import TransformerShape

FLASH_ROWS, FLASH_COLUMNS = 128, 32
"""Multiples to which flash attention's backward kernel rounds sequences and heads: flash_api.cpp, mha_bwd."""

ROUTING_B = 36
"""Per token and expert that it passes: four int64 indices (of experts, two orders, tokens) and a weight."""

CodeName = Literal["llama", "gemma", "mixtral", "qwen3_moe"]
"""Whose code a layer has. gemma: norms that are multiplied by 1 + weight in fp32."""


class Tape:
    """Adds up what a step takes and releases, in its order. Amounts below 0 are releases."""

    def __init__(self) -> None:
        self.live_B = 0.0
        self.peak_B = 0.0

    def add(self, *amounts_B: float) -> None:
        """Take or release bytes, one amount after another."""
        for amount_B in amounts_B:
            self.live_B += amount_B
            self.peak_B = max(self.peak_B, self.live_B)

    def inside(self, *amounts_B: float) -> None:
        """Take bytes, one amount after another, and release all of them."""
        self.add(*amounts_B, -sum(amounts_B))


class StepPrecision(NamedTuple):
    """Bytes per element of a kind of mixed precision.

    `autocast`: weights and the residual stream are fp32, each linear layer casts its weight and its input to
    bf16 and keeps both copies. Without it weights, as they are gathered, and activations have one type.
    """

    stream_B: int  # of the residual stream and what is computed outside of linear layers
    product_B: int  # of the results of linear layers and of attention
    autocast: bool


AUTOCAST = StepPrecision(stream_B=4, product_B=2, autocast=True)
NARROW = StepPrecision(stream_B=2, product_B=2, autocast=False)
WIDE = StepPrecision(stream_B=4, product_B=4, autocast=False)


class ExpertsOfLayer:
    """A layer's experts, all of them in grouped products. Routing is taken as even.

    Each token's row is copied for each of its experts, in the order of experts. Mixtral multiplies their
    results with fp32 weights, the others with bf16 ones.
    """

    def __init__(self, sizes: LayerCode, wide_weights: bool):
        self.add = sizes.add
        shape, rows = sizes.shape, sizes.shape.experts_per_token
        self.rows_B = sizes.size_B(rows * shape.hidden_size, 2)
        self.weighted_B = 2 * self.rows_B if wide_weights else self.rows_B
        self.inner_B = sizes.size_B(rows * shape.moe_intermediate_size, 2)
        self.result_B = sizes.size_B(shape.hidden_size, 2)
        self.routing_B = sizes.size_B(4 * shape.num_experts + ROUTING_B * rows, 1)
        self.down_B = 2.0 * shape.num_experts * shape.hidden_size * shape.moe_intermediate_size
        self.wide = wide_weights

    def forward(self, again: bool = False) -> None:
        """Run the experts; what they keep and their result stay. `again`: recomputed, without the result."""
        self.add(self.routing_B, self.rows_B, 2 * self.inner_B, self.inner_B, self.inner_B, self.rows_B)
        self.add(self.weighted_B)
        if again:
            self.add(-self.weighted_B)
            return
        self.add(self.weighted_B, -self.weighted_B)
        if self.wide:
            self.add(2 * self.result_B, self.result_B, -self.weighted_B, -2 * self.result_B)
        else:
            self.add(self.result_B, -self.weighted_B)

    def begin_backward(self) -> None:
        """Give each row its token's gradient, for which nothing that was kept is needed."""
        if self.wide:
            self.add(2 * self.result_B, self.weighted_B, -2 * self.result_B)
        else:
            self.add(self.weighted_B)

    def backward(self) -> None:
        """Run the rest of the backward pass; the gradient of the norm's result stays."""
        rows_B, weighted_B, inner_B = self.rows_B, self.weighted_B, self.inner_B
        self.add(weighted_B, -weighted_B, weighted_B, weighted_B)
        if self.wide:
            self.add(rows_B, -weighted_B)
        self.add(-rows_B - 2 * weighted_B)
        self.add(self.down_B, inner_B, -inner_B, -rows_B)
        self.add(inner_B, inner_B, -2 * inner_B)
        self.add(inner_B, -3 * inner_B, 2 * inner_B, -2 * inner_B)
        self.add(2 * self.down_B, rows_B, -rows_B, -2 * inner_B)
        self.add(self.result_B, -rows_B, self.result_B, -2 * self.result_B, -self.routing_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCode:
    """A layer's operations on a micro-batch, which go on a step's tape."""

    tape: Tape
    shape: TransformerShape
    precision: StepPrecision
    sequences: int
    seq_len: int
    explicit_attention: bool = False
    code: CodeName = "llama"
    fused: bool = False  # norms and the gated activation keep their inputs alone
    accumulates: bool = False  # weights' gradients are added to those of an earlier micro-batch, in place
    when_gradient: Callable[[float], None] | None = None  # called with the elements of each weight's gradient

    def add(self, *amounts_B: float) -> None:
        """Take or release bytes on the tape."""
        self.tape.add(*amounts_B)

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

    # A linear layer.

    def linear(self, inputs: int, outputs: int, casts_input: bool = True, there: bool = False) -> None:
        """Run a linear layer; its result stays. `casts_input`: autocast keeps a bf16 copy of its input.

        `there`: selective recompute kept the result.
        """
        if self.precision.autocast:
            self.add(self.weight_B(inputs, outputs), self.size_B(inputs, 2) if casts_input else 0.0)
        self.add(0.0 if there else self.size_B(outputs, self.precision.product_B))

    def linear_backward(
        self,
        inputs: int,
        outputs: int,
        added: Literal["", "in place", "anew"] = "",
        *,
        casts_input: bool = True,
        frees_input: bool = False,
        frees_gradient: bool = True,
    ) -> None:
        """Run a linear layer's backward pass; the gradient of its input stays.

        `added`: it is added to another gradient, in place of that one, or without autocast in a tensor of its
        own. `frees_input`, `frees_gradient`: no other operation needs the input or the result's gradient.
        """
        product = self.precision.product_B
        weight_B = self.weight_B(inputs, outputs)
        input_B, output_B = self.size_B(inputs, product), self.size_B(outputs, product)
        self.add(weight_B, input_B)
        if self.when_gradient:
            self.when_gradient(float(inputs * outputs))
        autocast = self.precision.autocast
        if frees_input or (autocast and casts_input):
            self.add(-input_B)
        if frees_gradient or autocast:
            self.add(-output_B)
        if autocast:
            self.add(-weight_B)
        if autocast and casts_input:  # the gradient in the input's own type
            self.add(2 * input_B, -input_B)
            self.add(-2 * input_B if added else 0.0)
        elif added == "anew":
            self.add(input_B, -input_B, -input_B)
        elif added:
            self.add(-input_B)
        if autocast:
            self.add(2 * weight_B, -weight_B)
        self.add(-self.added_B(weight_B))

    @property
    def norms_copy(self) -> bool:
        """Return whether norms keep an fp32 copy of their input, and not the input."""
        return self.precision.stream_B == 2 and not self.fused

    # A norm. transformers computes it operation by operation, in fp32.

    def norm(self, width: int) -> float:
        """Run a norm of so many elements per token; return the bytes of its result, which stays."""
        wide_B, stream_B = self.size_B(width, 4), self.size_B(width, self.precision.stream_B)
        if self.fused:
            self.add(stream_B)
            return stream_B
        if self.precision.stream_B == 2:
            self.add(wide_B)
            self.tape.inside(wide_B)
            if self.code == "gemma":
                self.add(wide_B, wide_B, stream_B, -wide_B)
            else:
                self.add(wide_B, stream_B, stream_B, -wide_B)
            return stream_B
        self.tape.inside(wide_B)
        self.add(wide_B, wide_B)
        return wide_B

    def norm_backward(self, width: int, residual: bool, input_B: float = 0.0) -> None:
        """Run a norm's backward pass, which releases the gradient of its result.

        `residual`: the gradient of its input is added to the residual stream's; else it stays. `input_B`: of
        the input, which is released after its last use.
        """
        wide_B, stream_B = self.size_B(width, 4), self.size_B(width, self.precision.stream_B)
        narrow = self.precision.stream_B == 2
        if self.fused:  # the gradient overwrites that of the result
            if self.when_gradient:
                self.when_gradient(float(width))
            if residual:
                self.add(-input_B, stream_B, -2 * stream_B)
            return
        if narrow and self.code == "gemma":
            self.add(wide_B, -stream_B, wide_B, wide_B, -3 * wide_B)
        else:
            self.add(stream_B, stream_B, -stream_B, -stream_B, -stream_B)  # of the weight and its factor
            if self.when_gradient:
                self.when_gradient(float(width))
            if narrow:
                self.add(wide_B, -stream_B)
        self.add(wide_B, wide_B, -wide_B, -wide_B)
        if not narrow and residual:
            self.add(-wide_B)
        self.add(wide_B, wide_B, wide_B, wide_B, -(wide_B if narrow else input_B))
        self.add(-wide_B, -wide_B, -wide_B)
        if narrow:
            self.add(-wide_B, stream_B, -wide_B)
            if residual:
                self.add(-stream_B)
        else:
            self.add(-wide_B)

    # Attention.

    def rotated_B(self, size_B: float) -> float:
        """Return the bytes of rotated queries or keys, whose linear layers' results take `size_B`."""
        return size_B * self.precision.stream_B / self.precision.product_B

    def norm_of_heads(self, width: int) -> None:
        """Run the norm of each head, whose result replaces that of the linear layer."""
        wide_B, product_B = self.size_B(width, 4), self.size_B(width, self.precision.product_B)
        self.add(wide_B if self.precision.product_B == 2 else 0.0)
        self.tape.inside(wide_B)
        self.add(self.size_B(width // self.shape.head_dim, 4), wide_B)
        if self.precision.product_B == 2:
            self.add(product_B, self.rotated_B(product_B), -product_B, -wide_B)
        else:
            self.add(wide_B)

    def norm_of_heads_backward(self, width: int) -> None:
        """Run the backward pass of the norm of each head."""
        product_B = self.size_B(width, self.precision.product_B)
        if self.precision.autocast:
            wide_B = self.size_B(width, 4)
            self.add(wide_B, wide_B, -wide_B, product_B, -product_B, -wide_B, -wide_B, wide_B, -product_B)
            self.add(wide_B, wide_B, -wide_B, -wide_B, wide_B, wide_B, wide_B, wide_B, -5 * wide_B)
            self.add(product_B, -wide_B)
        else:
            self.norm_backward(width, residual=False, input_B=product_B)
        self.add(-self.size_B(width // self.shape.head_dim, 4))

    def rotate(self, size_B: float) -> None:
        """Rotate queries or keys of so many bytes; what is rotated and the result stay."""
        wide_B = self.rotated_B(size_B)
        from_B = wide_B if self.shape.qk_norm_size else size_B
        self.add(wide_B, from_B / 2, from_B, -from_B / 2, wide_B, -from_B, wide_B, -wide_B, -wide_B)

    def rotate_backward(self, size_B: float) -> None:
        """Run the backward pass of a rotation; its gradient replaces that of the result."""
        wide_B = self.rotated_B(size_B)
        to_B = wide_B if self.shape.qk_norm_size else size_B
        cast_B = size_B if self.precision.autocast and not self.shape.qk_norm_size else 0.0
        self.add(wide_B, cast_B, -wide_B if cast_B else 0.0)
        self.add(to_B / 2, to_B, -to_B / 2, to_B, -to_B, -to_B)
        self.add(wide_B, cast_B, -wide_B, -wide_B, -cast_B)

    def attention(self, there: bool = False) -> None:
        """Run attention from the norm's result to the output layer's, which stay."""
        shape, keys = self.shape, self.shape.num_key_value_heads * self.shape.head_dim
        for width, normed in ((shape.query_size, True), (keys, True), (keys, False)):
            self.linear(shape.hidden_size, width, there=there)
            if normed and shape.qk_norm_size:
                self.norm_of_heads(width)
        self.rotate(self.query_B)
        self.rotate(self.key_B)
        both_B = self.query_B + self.key_B
        self.add(-self.rotated_B(both_B) if shape.qk_norm_size else -both_B)
        if self.precision.autocast:
            self.add(self.query_B, self.key_B)
        if not self.explicit_attention:
            self.add(*self.repeated_B, self.query_B, self.sums_B)
        else:
            self.scores()
        self.linear(shape.query_size, shape.hidden_size, casts_input=False, there=there)
        self.add(-2 * self.key_B if self.repeated_B else 0.0)
        if self.precision.autocast:
            self.add(-self.rotated_B(both_B))

    @property
    def repeated_B(self) -> tuple[float, ...]:
        """Return the bytes of keys and values for every head, which the kernel for fp32 needs."""
        grouped = self.shape.num_key_value_heads < self.shape.num_attention_heads
        return (self.query_B, self.query_B) if grouped and self.precision.product_B == 4 else ()

    def scores(self) -> None:
        """Multiply queries and keys, mask, take the softmax in fp32 and multiply with the values."""
        product_B = self.precision.product_B * self.score_elements
        wide_B = 4.0 * self.score_elements
        self.add(product_B, product_B, -product_B, product_B, -product_B, wide_B, wide_B, -wide_B)
        self.add(product_B, -product_B, self.query_B, self.query_B, -self.query_B)

    def scores_backward(self) -> None:
        """Run the backward pass from the gradient of attention's result, which is released."""
        product_B = self.precision.product_B * self.score_elements
        wide_B = 4.0 * self.score_elements
        self.add(self.key_B, product_B, -self.key_B - product_B - self.query_B)
        self.add(wide_B, -product_B, wide_B, -2 * wide_B, product_B, -wide_B, product_B, -product_B)
        self.add(self.key_B, self.query_B, -self.key_B - self.query_B - product_B)

    @property
    def score_elements(self) -> float:
        """Return the elements of all heads' scores."""
        return float(self.sequences * self.shape.num_attention_heads * self.seq_len**2)

    def attention_backward(self) -> None:
        """Run attention's backward pass; the gradient of the norm's result stays."""
        shape, keys = self.shape, self.shape.num_key_value_heads * self.shape.head_dim
        query_B, key_B = self.query_B, self.key_B
        autocast, flash = self.precision.autocast, not self.explicit_attention
        self.add(self.size_B(shape.hidden_size, 2) if autocast else 0.0)
        self.linear_backward(
            shape.query_size,
            shape.hidden_size,
            casts_input=False,
            frees_input=not flash,
            frees_gradient=False,
        )
        if flash and self.repeated_B:
            self.add(query_B, query_B, query_B, -5 * query_B - self.sums_B)
            self.add(key_B, -query_B, key_B, -query_B)
        elif flash:
            workspace_B = self.flash_workspace_B if self.precision.product_B == 2 else 0.0
            self.add(query_B, key_B, key_B, workspace_B)
            self.add(-2 * key_B - 2 * query_B - self.sums_B, -query_B, -workspace_B)
        else:
            self.scores_backward()
        if autocast:  # gradients in fp32
            self.add(2 * key_B, -key_B, 2 * query_B, -query_B)
        self.rotate_backward(key_B)
        self.rotate_backward(query_B)
        self.linear_backward(shape.hidden_size, keys)
        if shape.qk_norm_size:
            self.norm_of_heads_backward(keys)
        self.tape.inside(key_B)
        self.linear_backward(shape.hidden_size, keys, "anew")
        if shape.qk_norm_size:
            self.norm_of_heads_backward(shape.query_size)
        self.tape.inside(query_B)
        self.linear_backward(shape.hidden_size, shape.query_size, "in place", frees_input=True)

    @property
    def flash_workspace_B(self) -> float:
        """Return the gradient of the queries in fp32, and one number per row."""
        rows = -(-self.seq_len // FLASH_ROWS) * FLASH_ROWS
        columns = -(-self.shape.head_dim // FLASH_COLUMNS) * FLASH_COLUMNS
        return 4.0 * self.sequences * self.shape.num_attention_heads * rows * (columns + 1)

    # The MLP.

    def mlp(self, again: bool = False, there: bool = False) -> None:
        """Run the MLP; what it keeps and its result stay. `again`: recomputed, so that it ends early."""
        shape, width = self.shape, self.shape.intermediate_size
        inner_B = self.size_B(width, self.precision.product_B)
        self.linear(shape.hidden_size, width, there=there)
        self.add(0.0 if self.fused else inner_B)  # the activation
        self.linear(shape.hidden_size, width, there=there)
        self.add(inner_B)  # the product of both
        if again:
            self.add(self.weight_B(width, shape.hidden_size) if self.precision.autocast else 0.0)
        else:
            self.linear(width, shape.hidden_size, casts_input=False)

    def mlp_backward(self) -> None:
        """Run the MLP's backward pass; the gradient of the norm's result stays."""
        shape, width = self.shape, self.shape.intermediate_size
        inner_B = self.size_B(width, self.precision.product_B)
        self.add(self.size_B(shape.hidden_size, 2) if self.precision.autocast else 0.0)
        self.linear_backward(
            width, shape.hidden_size, casts_input=False, frees_input=True, frees_gradient=False
        )
        if self.fused:  # gradients overwrite gate and up
            self.add(-inner_B)
            self.linear_backward(shape.hidden_size, width)
        else:
            self.add(inner_B, inner_B, -3 * inner_B)
            self.linear_backward(shape.hidden_size, width)
            self.add(inner_B, -2 * inner_B)
        self.linear_backward(shape.hidden_size, width, "anew", frees_input=True)

    # The layer.

    @property
    def experts(self) -> ExpertsOfLayer:
        """Return the mixture of experts that is in the MLP's place."""
        return ExpertsOfLayer(self, wide_weights=self.code == "mixtral")

    def begin_backward(self) -> None:
        """Run what of the backward pass needs nothing that was kept, before a layer is recomputed."""
        if self.shape.num_experts:
            self.experts.begin_backward()

    def forward(self, again: bool = False, there: bool = False) -> None:
        """Run the layer on an input that is there; its result stays, without autocast in place of the input.

        `again`: recomputed in the backward pass; there is no result then, and the input stays. `there`:
        results of linear layers were kept.
        """
        narrow = self.norms_copy
        kept = not self.precision.autocast
        result_B = self.norm(self.shape.hidden_size)
        self.attention(there)
        product_B = self.size_B(self.shape.hidden_size, self.precision.product_B)
        self.add(0.0 if kept else -result_B, self.stream_B, -product_B)
        result_B = self.norm(self.shape.hidden_size)
        if self.shape.num_experts:
            self.experts.forward(again)
        else:
            self.mlp(again, there)
        self.add(0.0 if kept else -result_B)
        if again:
            self.add(-self.stream_B if narrow else 0.0)
            return
        self.add(self.stream_B, -product_B)
        if narrow:  # the input and the sum with attention's result
            self.add(-2 * self.stream_B)

    @property
    def products_B(self) -> float:
        """Return the bytes of the results of all linear layers."""
        widths = 2 * self.shape.hidden_size + 2 * self.shape.intermediate_size
        return 2 * self.key_B + self.query_B + self.size_B(widths, self.precision.product_B)

    def backward(self, again: bool = False) -> None:
        """Run the layer's backward pass on the gradient of its result, which that of its input replaces.

        `again`: the layer was recomputed, so that its input is released here.
        """
        width = self.shape.hidden_size
        if self.shape.num_experts:
            self.experts.backward()
        else:
            self.mlp_backward()
        self.norm_backward(width, residual=True, input_B=self.stream_B)
        self.attention_backward()
        self.norm_backward(width, residual=True, input_B=self.stream_B)
        if self.norms_copy and again:
            self.add(-self.stream_B)
