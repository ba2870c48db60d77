"""The mixture of experts of transformers' Mixtral and Qwen3-MoE: all experts of a layer in grouped products.

Facts: transformers 5.23.0, integrations/moe.py. Each token's row is copied for each of its experts, in the
order of experts. Routing is taken as even.
"""

from __future__ import annotations

from suites.training.layouts.transformers_code.sizes import LayerSizes
from suites.training.layouts.transformers_code.tape import Tape

ROUTING_B = 36
"""Per token and expert that it passes: four int64 indices (of experts, two orders, tokens) and a weight."""


class ExpertsOfLayer:
    """A layer's experts. Mixtral multiplies their results with fp32 weights, the others with bf16 ones."""

    def __init__(self, sizes: LayerSizes, wide_weights: bool):
        self.sizes = sizes
        shape, rows = sizes.shape, sizes.shape.experts_per_token
        self.rows_B = sizes.size_B(rows * shape.hidden_size, 2)
        self.weighted_B = 2 * self.rows_B if wide_weights else self.rows_B
        self.inner_B = sizes.size_B(rows * shape.moe_intermediate_size, 2)
        self.result_B = sizes.size_B(shape.hidden_size, 2)
        self.routing_B = sizes.size_B(4 * shape.num_experts + ROUTING_B * rows, 1)
        self.down_B = 2.0 * shape.num_experts * shape.hidden_size * shape.moe_intermediate_size
        self.wide = wide_weights

    def forward(self, tape: Tape, again: bool = False) -> None:
        """Run the experts; what they keep and their result stay. `again`: recomputed, without the result."""
        tape.add(self.routing_B, self.rows_B, 2 * self.inner_B, self.inner_B, self.inner_B, self.rows_B)
        tape.add(self.weighted_B)
        if again:
            tape.add(-self.weighted_B)
            return
        tape.add(self.weighted_B, -self.weighted_B)
        if self.wide:
            tape.add(2 * self.result_B, self.result_B, -self.weighted_B, -2 * self.result_B)
        else:
            tape.add(self.result_B, -self.weighted_B)

    def begin_backward(self, tape: Tape) -> None:
        """Give each row its token's gradient, for which nothing that was kept is needed."""
        if self.wide:
            tape.add(2 * self.result_B, self.weighted_B, -2 * self.result_B)
        else:
            tape.add(self.weighted_B)

    def backward(self, tape: Tape) -> None:
        """Run the rest of the backward pass; the gradient of the norm's result stays."""
        rows_B, weighted_B, inner_B = self.rows_B, self.weighted_B, self.inner_B
        tape.add(weighted_B, -weighted_B, weighted_B, weighted_B)
        if self.wide:
            tape.add(rows_B, -weighted_B)
        tape.add(-rows_B - 2 * weighted_B)
        tape.add(self.down_B, inner_B, -inner_B, -rows_B)
        tape.add(inner_B, inner_B, -2 * inner_B)
        tape.add(inner_B, -3 * inner_B, 2 * inner_B, -2 * inner_B)
        tape.add(2 * self.down_B, rows_B, -rows_B, -2 * inner_B)
        tape.add(self.result_B, -rows_B, self.result_B, -2 * self.result_B, -self.routing_B)
