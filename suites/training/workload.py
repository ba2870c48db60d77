"""What a training step trains, as plain data: its model's sizes, what follows from them, and its batch.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable


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


SIZES = [*ModelShape.__dataclass_fields__][:6]
"""A model's sizes, whatever its kind."""


def llama(sizes: Any) -> ModelShape:
    """Return Llama's kind of model: RMSNorm, SwiGLU, rotary positions, no biases, untied embeddings.

    `sizes`: a workload with the sizes of a `ModelShape`, and seq_len.
    """
    return ModelShape(
        **{name: getattr(sizes, name) for name in SIZES},
        norm="rms",
        mlp="swiglu",
        position="rotary",
        max_position_embeddings=sizes.seq_len,
        tie_word_embeddings=False,
        bias=False,
    )


TextVocabulary = Annotated[int, Bounds(at_least=8)]
"""Vocabulary size of workloads that learn from text, where one of four words follows each word (data.py)."""

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna"]
"""A GPU's architecture. cdna: AMD's CDNA 3 and 4, whose torch has the same allocator."""

HiddenSize = Annotated[int, Bounds(at_least=1, multiple_of="num_attention_heads")]
AttentionHeads = Annotated[int, Bounds(at_least=1, multiple_of="num_key_value_heads")]


def refuse_odd_heads(workload: Any) -> None:
    """Raise `Unavailable` where rotary positions cannot halve a head of a suite's workload."""
    size = workload.hidden_size // workload.num_attention_heads
    if size % 2:
        raise Unavailable(f"rotary positions need an even head size, not {size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWorkload:
    """The sizes of a model and of its micro-batches.

    The workloads of suites memory, memory_published, interconnect and offload extend it.
    """

    num_hidden_layers: PositiveInt
    hidden_size: HiddenSize
    num_attention_heads: AttentionHeads
    num_key_value_heads: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: Annotated[int, Bounds(at_least=2)]
    seq_len: PositiveInt
    micro_batch_size: PositiveInt = 1  # sequences of one micro-batch, which is one forward pass, on one rank
    learning_rate: Annotated[float, Bounds(above=0)] | None = None  # None: the optimizer's own

    @property
    def shape(self) -> ModelShape:
        """Return the shape of a model of Llama's kind."""
        return llama(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(StepWorkload):
    """What is trained, before any technique; a suite's workload has further fields."""

    seq_len: Annotated[int, Bounds(at_least=1, not_above="max_position_embeddings")]
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    position: Literal["rotary", "learned"] = "rotary"
    max_position_embeddings: PositiveInt | None = None  # the longest sequence; None: seq_len
    tie_word_embeddings: bool = False  # the output layer shares the embedding
    bias: bool = False
    dropout: Annotated[float, Bounds(at_least=0, at_most=0.99)] = 0.0
    num_experts: PositiveInt | None = None  # of each layer's mixture, see mixture.py; None: one MLP
    num_experts_per_tok: Annotated[int, Bounds(at_least=1, not_above="num_experts")] = 1
    moe_intermediate_size: PositiveInt | None = None  # of one expert; None: intermediate_size
    shared_expert_intermediate_size: PositiveInt | None = (
        None  # of the expert of all tokens; None: there is none
    )
    # A Hugging Face config.json, whose model of transformers takes the place of the shape above.
    hf_config: dict[str, Any] | None = field(default=None, hash=False)
    model: str | None = None  # "package.module:function", the user's own code: see user_model.py
    gradient_accumulation_steps: PositiveInt = 1  # micro-batches per update
    max_grad_norm: Annotated[float, Bounds(at_least=0)] | None = None
    dp_size: PositiveInt = 1  # ranks that data-parallel techniques spread over
    tp_size: PositiveInt = 1  # ranks that tensor parallelism spreads over
    cp_size: PositiveInt = 1  # ranks that context parallelism spreads over
    # Ranks that share the layers under the technique pipeline; a step on one rank ignores it.
    pp_size: Annotated[int, Bounds(at_least=1, not_above="num_hidden_layers")] = 1
    ep_size: PositiveInt = 1  # ranks that share each layer's experts, see the technique expert_parallel
    optimizer: str = "adamw"  # a name of `optimizers.LEARNING_RATES`
    optimizer_impl: Literal["default", "for_loop", "foreach", "fused"] = "default"
    weight_decay: Annotated[float, Bounds(at_least=0)] = 0.1  # of all optimizers but SGD
    adam_epsilon: Annotated[float, Bounds(at_least=0)] = 1e-8  # of AdamW

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Workload:
        """Return the workload from a suite's fields, which may include others."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})

    @property
    def shape(self) -> ModelShape:
        """Return the model's shape."""
        own = {name: getattr(self, name) for name in ModelShape.__dataclass_fields__}
        return ModelShape(**{**own, "max_position_embeddings": self.max_position_embeddings or self.seq_len})

    @property
    def other_code(self) -> bool:
        """Return whether the model is not `suites.training.models.model`'s."""
        return self.hf_config is not None or self.model is not None

    @property
    def sequences(self) -> int:
        """Return the sequences that one rank takes per update."""
        return self.micro_batch_size * self.gradient_accumulation_steps
