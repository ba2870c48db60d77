"""One layer of transformers' Llama and its descendants: what each operation takes, keeps and releases.

Facts: transformers 5.23.0, models/llama/modeling_llama.py, qwen2, qwen3 and mistral; torch's autograd
releases what an operation saved when its backward pass is over. The order is that of live tensors in dry runs
of this code, with torch's CUDA kernels.
"""

from __future__ import annotations

from typing import Literal

from suites.training.layouts.transformers_code.experts import ExpertsOfLayer
from suites.training.layouts.transformers_code.sizes import LayerSizes
from suites.training.layouts.transformers_code.tape import Tape

FLASH_ROWS, FLASH_COLUMNS = 128, 32
"""Multiples to which flash attention's backward kernel rounds sequences and heads: flash_api.cpp, mha_bwd."""


class LayerCode(LayerSizes):
    """A layer's operations."""

    # A linear layer.

    def linear(
        self, tape: Tape, inputs: int, outputs: int, casts_input: bool = True, there: bool = False
    ) -> None:
        """Run a linear layer; its result stays. `casts_input`: autocast keeps a bf16 copy of its input.

        `there`: selective recompute kept the result.
        """
        if self.precision.autocast:
            tape.add(self.weight_B(inputs, outputs), self.size_B(inputs, 2) if casts_input else 0.0)
        tape.add(0.0 if there else self.size_B(outputs, self.precision.product_B))

    def linear_backward(
        self,
        tape: Tape,
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
        tape.add(weight_B, input_B)
        if self.when_gradient:
            self.when_gradient(float(inputs * outputs))
        autocast = self.precision.autocast
        if frees_input or (autocast and casts_input):
            tape.add(-input_B)
        if frees_gradient or autocast:
            tape.add(-output_B)
        if autocast:
            tape.add(-weight_B)
        if autocast and casts_input:  # the gradient in the input's own type
            tape.add(2 * input_B, -input_B)
            tape.add(-2 * input_B if added else 0.0)
        elif added == "anew":
            tape.add(input_B, -input_B, -input_B)
        elif added:
            tape.add(-input_B)
        if autocast:
            tape.add(2 * weight_B, -weight_B)
        tape.add(-self.added_B(weight_B))

    # A norm. transformers computes it operation by operation, in fp32.

    def norm(self, tape: Tape, width: int) -> float:
        """Run a norm of so many elements per token; return the bytes of its result, which stays."""
        wide_B, stream_B = self.size_B(width, 4), self.size_B(width, self.precision.stream_B)
        if self.precision.stream_B == 2:
            tape.add(wide_B)
            tape.inside(wide_B)
            if self.code == "gemma":
                tape.add(wide_B, wide_B, stream_B, -wide_B)
            else:
                tape.add(wide_B, stream_B, stream_B, -wide_B)
            return stream_B
        tape.inside(wide_B)
        tape.add(wide_B, wide_B)
        return wide_B

    def norm_backward(self, tape: Tape, width: int, residual: bool, input_B: float = 0.0) -> None:
        """Run a norm's backward pass, which releases the gradient of its result.

        `residual`: the gradient of its input is added to the residual stream's; else it stays. `input_B`: of
        the input, which is released after its last use.
        """
        wide_B, stream_B = self.size_B(width, 4), self.size_B(width, self.precision.stream_B)
        narrow = self.precision.stream_B == 2
        if narrow and self.code == "gemma":
            tape.add(wide_B, -stream_B, wide_B, wide_B, -3 * wide_B)
        else:
            tape.add(stream_B, stream_B, -stream_B, -stream_B, -stream_B)  # of the weight and its factor
            if self.when_gradient:
                self.when_gradient(float(width))
            if narrow:
                tape.add(wide_B, -stream_B)
        tape.add(wide_B, wide_B, -wide_B, -wide_B)
        if not narrow and residual:
            tape.add(-wide_B)
        tape.add(wide_B, wide_B, wide_B, wide_B, -(wide_B if narrow else input_B))
        tape.add(-wide_B, -wide_B, -wide_B)
        if narrow:
            tape.add(-wide_B, stream_B, -wide_B)
            if residual:
                tape.add(-stream_B)
        else:
            tape.add(-wide_B)

    # Attention.

    def rotated_B(self, size_B: float) -> float:
        """Return the bytes of rotated queries or keys, whose linear layers' results take `size_B`."""
        return size_B * self.precision.stream_B / self.precision.product_B

    def norm_of_heads(self, tape: Tape, width: int) -> None:
        """Run the norm of each head, whose result replaces that of the linear layer."""
        wide_B, product_B = self.size_B(width, 4), self.size_B(width, self.precision.product_B)
        tape.add(wide_B if self.precision.product_B == 2 else 0.0)
        tape.inside(wide_B)
        tape.add(self.size_B(width // self.shape.head_dim, 4), wide_B)
        if self.precision.product_B == 2:
            tape.add(product_B, self.rotated_B(product_B), -product_B, -wide_B)
        else:
            tape.add(wide_B)

    def norm_of_heads_backward(self, tape: Tape, width: int) -> None:
        """Run the backward pass of the norm of each head."""
        product_B = self.size_B(width, self.precision.product_B)
        if self.precision.autocast:
            wide_B = self.size_B(width, 4)
            tape.add(wide_B, wide_B, -wide_B, product_B, -product_B, -wide_B, -wide_B, wide_B, -product_B)
            tape.add(wide_B, wide_B, -wide_B, -wide_B, wide_B, wide_B, wide_B, wide_B, -5 * wide_B)
            tape.add(product_B, -wide_B)
        else:
            self.norm_backward(tape, width, residual=False, input_B=product_B)
        tape.add(-self.size_B(width // self.shape.head_dim, 4))

    def rotate(self, tape: Tape, size_B: float) -> None:
        """Rotate queries or keys of so many bytes; what is rotated and the result stay."""
        wide_B = self.rotated_B(size_B)
        from_B = wide_B if self.shape.qk_norm_size else size_B
        tape.add(wide_B, from_B / 2, from_B, -from_B / 2, wide_B, -from_B, wide_B, -wide_B, -wide_B)

    def rotate_backward(self, tape: Tape, size_B: float) -> None:
        """Run the backward pass of a rotation; its gradient replaces that of the result."""
        wide_B = self.rotated_B(size_B)
        to_B = wide_B if self.shape.qk_norm_size else size_B
        cast_B = size_B if self.precision.autocast and not self.shape.qk_norm_size else 0.0
        tape.add(wide_B, cast_B, -wide_B if cast_B else 0.0)
        tape.add(to_B / 2, to_B, -to_B / 2, to_B, -to_B, -to_B)
        tape.add(wide_B, cast_B, -wide_B, -wide_B, -cast_B)

    def attention(self, tape: Tape, there: bool = False) -> None:
        """Run attention from the norm's result to the output layer's, which stay."""
        shape, keys = self.shape, self.shape.num_key_value_heads * self.shape.head_dim
        for width, normed in ((shape.query_size, True), (keys, True), (keys, False)):
            self.linear(tape, shape.hidden_size, width, there=there)
            if normed and shape.qk_norm_size:
                self.norm_of_heads(tape, width)
        self.rotate(tape, self.query_B)
        self.rotate(tape, self.key_B)
        both_B = self.query_B + self.key_B
        tape.add(-self.rotated_B(both_B) if shape.qk_norm_size else -both_B)
        if self.precision.autocast:
            tape.add(self.query_B, self.key_B)
        if self.attention_kernel == "flash":
            tape.add(*self.repeated_B, self.query_B, self.sums_B)
        else:
            self.scores(tape)
        self.linear(tape, shape.query_size, shape.hidden_size, casts_input=False, there=there)
        tape.add(-2 * self.key_B if self.repeated_B else 0.0)
        if self.precision.autocast:
            tape.add(-self.rotated_B(both_B))

    @property
    def repeated_B(self) -> tuple[float, ...]:
        """Return the bytes of keys and values for every head, which the kernel for fp32 needs."""
        grouped = self.shape.num_key_value_heads < self.shape.num_attention_heads
        return (self.query_B, self.query_B) if grouped and self.precision.product_B == 4 else ()

    def scores(self, tape: Tape) -> None:
        """Multiply queries and keys, mask, take the softmax in fp32 and multiply with the values."""
        product_B = self.precision.product_B * self.score_elements
        wide_B = 4.0 * self.score_elements
        tape.add(product_B, product_B, -product_B, product_B, -product_B, wide_B, wide_B, -wide_B)
        tape.add(product_B, -product_B, self.query_B, self.query_B, -self.query_B)

    def scores_backward(self, tape: Tape) -> None:
        """Run the backward pass from the gradient of attention's result, which is released."""
        product_B = self.precision.product_B * self.score_elements
        wide_B = 4.0 * self.score_elements
        tape.add(self.key_B, product_B, -self.key_B - product_B - self.query_B)
        tape.add(wide_B, -product_B, wide_B, -2 * wide_B, product_B, -wide_B, product_B, -product_B)
        tape.add(self.key_B, self.query_B, -self.key_B - self.query_B - product_B)

    @property
    def score_elements(self) -> float:
        """Return the elements of all heads' scores."""
        return float(self.sequences * self.shape.num_attention_heads * self.seq_len**2)

    def attention_backward(self, tape: Tape) -> None:
        """Run attention's backward pass; the gradient of the norm's result stays."""
        shape, keys = self.shape, self.shape.num_key_value_heads * self.shape.head_dim
        query_B, key_B = self.query_B, self.key_B
        autocast, flash = self.precision.autocast, self.attention_kernel == "flash"
        tape.add(self.size_B(shape.hidden_size, 2) if autocast else 0.0)
        self.linear_backward(
            tape,
            shape.query_size,
            shape.hidden_size,
            casts_input=False,
            frees_input=not flash,
            frees_gradient=False,
        )
        if flash and self.repeated_B:
            tape.add(query_B, query_B, query_B, -5 * query_B - self.sums_B)
            tape.add(key_B, -query_B, key_B, -query_B)
        elif flash:
            workspace_B = self.flash_workspace_B if self.precision.product_B == 2 else 0.0
            tape.add(query_B, key_B, key_B, workspace_B)
            tape.add(-2 * key_B - 2 * query_B - self.sums_B, -query_B, -workspace_B)
        else:
            self.scores_backward(tape)
        if autocast:  # gradients in fp32
            tape.add(2 * key_B, -key_B, 2 * query_B, -query_B)
        self.rotate_backward(tape, key_B)
        self.rotate_backward(tape, query_B)
        self.linear_backward(tape, shape.hidden_size, keys)
        if shape.qk_norm_size:
            self.norm_of_heads_backward(tape, keys)
        tape.inside(key_B)
        self.linear_backward(tape, shape.hidden_size, keys, "anew")
        if shape.qk_norm_size:
            self.norm_of_heads_backward(tape, shape.query_size)
        tape.inside(query_B)
        self.linear_backward(tape, shape.hidden_size, shape.query_size, "in place", frees_input=True)

    @property
    def flash_workspace_B(self) -> float:
        """Return the gradient of the queries in fp32, and one number per row."""
        rows = -(-self.seq_len // FLASH_ROWS) * FLASH_ROWS
        columns = -(-self.shape.head_dim // FLASH_COLUMNS) * FLASH_COLUMNS
        return 4.0 * self.sequences * self.shape.num_attention_heads * rows * (columns + 1)

    # The MLP.

    def mlp(self, tape: Tape, again: bool = False, there: bool = False) -> None:
        """Run the MLP; what it keeps and its result stay. `again`: recomputed, so that it ends early."""
        shape, width = self.shape, self.shape.intermediate_size
        inner_B = self.size_B(width, self.precision.product_B)
        self.linear(tape, shape.hidden_size, width, there=there)
        tape.add(inner_B)  # the activation
        self.linear(tape, shape.hidden_size, width, there=there)
        tape.add(inner_B)  # the product of both
        if again:
            tape.add(self.weight_B(width, shape.hidden_size) if self.precision.autocast else 0.0)
        else:
            self.linear(tape, width, shape.hidden_size, casts_input=False)

    def mlp_backward(self, tape: Tape) -> None:
        """Run the MLP's backward pass; the gradient of the norm's result stays."""
        shape, width = self.shape, self.shape.intermediate_size
        inner_B = self.size_B(width, self.precision.product_B)
        tape.add(self.size_B(shape.hidden_size, 2) if self.precision.autocast else 0.0)
        self.linear_backward(
            tape, width, shape.hidden_size, casts_input=False, frees_input=True, frees_gradient=False
        )
        tape.add(inner_B, inner_B, -3 * inner_B)
        self.linear_backward(tape, shape.hidden_size, width)
        tape.add(inner_B, -2 * inner_B)
        self.linear_backward(tape, shape.hidden_size, width, "anew", frees_input=True)

    # The layer.

    @property
    def experts(self) -> ExpertsOfLayer:
        """Return the mixture of experts that is in the MLP's place."""
        return ExpertsOfLayer(self, wide_weights=self.code == "mixtral")

    def begin_backward(self, tape: Tape) -> None:
        """Run what of the backward pass needs nothing that was kept, before a layer is recomputed."""
        if self.shape.num_experts:
            self.experts.begin_backward(tape)

    def forward(self, tape: Tape, again: bool = False, there: bool = False) -> None:
        """Run the layer on an input that is there; its result stays, without autocast in place of the input.

        `again`: recomputed in the backward pass; there is no result then, and the input stays. `there`:
        results of linear layers were kept.
        """
        narrow = self.precision.stream_B == 2
        kept = not self.precision.autocast
        result_B = self.norm(tape, self.shape.hidden_size)
        self.attention(tape, there)
        product_B = self.size_B(self.shape.hidden_size, self.precision.product_B)
        tape.add(0.0 if kept else -result_B, self.stream_B, -product_B)
        result_B = self.norm(tape, self.shape.hidden_size)
        if self.shape.num_experts:
            self.experts.forward(tape, again)
        else:
            self.mlp(tape, again, there)
        tape.add(0.0 if kept else -result_B)
        if again:
            tape.add(-self.stream_B if narrow else 0.0)
            return
        tape.add(self.stream_B, -product_B)
        if narrow:  # the input and the sum with attention's result
            tape.add(-2 * self.stream_B)

    @property
    def products_B(self) -> float:
        """Return the bytes of the results of all linear layers."""
        widths = 2 * self.shape.hidden_size + 2 * self.shape.intermediate_size
        return 2 * self.key_B + self.query_B + self.size_B(widths, self.precision.product_B)

    def backward(self, tape: Tape, again: bool = False) -> None:
        """Run the layer's backward pass on the gradient of its result, which that of its input replaces.

        `again`: the layer was recomputed, so that its input is released here.
        """
        width = self.shape.hidden_size
        if self.shape.num_experts:
            self.experts.backward(tape)
        else:
            self.mlp_backward(tape)
        self.norm_backward(tape, width, residual=True, input_B=self.stream_B)
        self.attention_backward(tape)
        self.norm_backward(tape, width, residual=True, input_B=self.stream_B)
        if self.precision.stream_B == 2 and again:
            tape.add(-self.stream_B)
