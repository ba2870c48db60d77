"""The shape of a decoder-only transformer: its sizes, and what follows from them. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer's shape. `num_key_value_heads` < `num_attention_heads`: grouped-query attention."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    norm: str  # rms | layer
    mlp: str  # swiglu | gelu
    position: str  # rotary | learned
    max_position_embeddings: int  # the longest sequence
    tie_word_embeddings: bool  # the head uses the token embedding's weight
    bias: bool  # biases of linear layers and layer norms
    dropout: float = 0.0
    num_experts: int | None = None  # None: one MLP; else a mixture, see `mixture.py`
    num_experts_per_tok: int = 1
    moe_intermediate_size: int | None = None  # of one expert; None: intermediate_size
    shared_expert_intermediate_size: int | None = None  # of an MLP that every token passes, too; None: none

    @property
    def expert_width(self) -> int:
        """Return the inner size of one expert."""
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def expert_parameters(self) -> int:
        """Calculate the parameters of all experts of all layers, without routers and shared experts."""
        return 3 * self.num_hidden_layers * (self.num_experts or 0) * self.hidden_size * self.expert_width

    @property
    def head_size(self) -> int:
        """Return the elements of one head (K)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def parameters(self) -> int:
        """Calculate the parameters of `Transformer(self)`; the head has no bias, tied weights count once."""
        kv = self.num_key_value_heads * self.head_size
        matrices = [(self.hidden_size, self.hidden_size)] * 2 + [(self.hidden_size, kv)] * 2
        width = self.intermediate_size if self.num_experts is None else self.shared_expert_intermediate_size
        if width is not None:
            matrices += [(self.hidden_size, width)] * (2 if self.mlp == "swiglu" else 1)
            matrices += [(width, self.hidden_size)]
        router = self.hidden_size * (self.num_experts or 0)
        norm = self.hidden_size * (2 if self.norm == "layer" and self.bias else 1)
        layer = sum(rows * columns + (columns if self.bias else 0) for rows, columns in matrices)
        layer += 2 * norm + router
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        learned = self.max_position_embeddings * self.hidden_size if self.position == "learned" else 0
        return self.num_hidden_layers * layer + self.expert_parameters + norm + embeddings + learned


def llama(sizes: Any) -> ModelShape:
    """Return Llama's kind of model: RMSNorm, SwiGLU, rotary positions, no biases, untied embeddings.

    `sizes`: a workload with the sizes of a `ModelShape`, and seq_len.
    """
    return ModelShape(
        num_hidden_layers=sizes.num_hidden_layers,
        hidden_size=sizes.hidden_size,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        intermediate_size=sizes.intermediate_size,
        vocab_size=sizes.vocab_size,
        norm="rms",
        mlp="swiglu",
        position="rotary",
        max_position_embeddings=sizes.seq_len,
        tie_word_embeddings=False,
        bias=False,
    )
