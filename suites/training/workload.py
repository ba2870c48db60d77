"""What a training step trains, as plain data. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training.models.shape import ModelShape, llama

TextVocabulary = Annotated[int, Bounds(at_least=8)]
"""Vocabulary size of workloads that learn from text, where one of four words follows each word (data.py)."""

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna"]
"""A GPU's architecture. cdna: AMD's CDNA 3 and 4, whose torch has the same allocator."""

HiddenSize = Annotated[int, Bounds(at_least=1, multiple_of="num_attention_heads")]
AttentionHeads = Annotated[int, Bounds(at_least=1, multiple_of="num_key_value_heads")]


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
    optimizer: str = "adamw"  # a name of `optimizers.OPTIMIZERS`
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
