"""What a training step trains, as plain data, and the resources of the process that builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch

from suites.training.host_memory import HostMemory
from suites.training.model import ModelShape


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained, before any technique; a suite's workload has further fields."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    seq_len: int
    micro_batch_size: int = 1  # sequences of one forward pass on one rank
    norm: str = "rms"  # rms | layer
    mlp: str = "swiglu"  # swiglu | gelu
    position: str = "rotary"  # rotary | learned
    max_position_embeddings: int | None = None  # the longest sequence; None: seq_len
    tie_word_embeddings: bool = False
    bias: bool = False
    dropout: float = 0.0
    # A Hugging Face config.json, in place of the shape above.
    hf_config: dict[str, Any] | None = field(default=None, hash=False)
    model: str | None = None  # "package.module:function", the user's own code: see user_model.py
    gradient_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    dp_size: int = 1  # ranks that data-parallel techniques spread over
    tp_size: int = 1  # ranks that tensor parallelism spreads over
    optimizer: str = "adamw"  # a name of `optimizers.OPTIMIZERS`
    optimizer_impl: str = "default"  # default | for_loop | foreach | fused
    learning_rate: float | None = None  # None: the optimizer's own
    weight_decay: float = 0.1
    adam_epsilon: float = 1e-8

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
        """Return whether the model is not `suites.training.model`'s."""
        return self.hf_config is not None or self.model is not None

    @property
    def sequences(self) -> int:
        """Return the sequences that one rank takes per update."""
        return self.micro_batch_size * self.gradient_accumulation_steps


class Resources(NamedTuple):
    """Resources of the process in which a technique is built."""

    device: torch.device
    host: HostMemory
    folder: str = ""  # for files; "": the system's for temporary ones
