"""Sizes of a model's step on one rank, from its config and its layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.config.own_files.setup import OwnSetup
from harness.config.user_inputs.hf_config import HEADS, HIDDEN, KEY_VALUE_HEADS, LAYERS, VOCAB, WIDTHS


class StepSizes(NamedTuple):
    """Numbers of elements of one rank's step."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int  # of the MLP
    vocab: int
    gated: bool
    tied: bool
    experts: int
    experts_per_token: int
    expert_width: int

    @property
    def attention(self) -> int:
        """Return the parameters of one layer's attention."""
        queries = self.heads * self.head_dim
        return self.hidden * (2 * queries + 2 * self.kv_heads * self.head_dim)

    @property
    def mlp(self) -> int:
        """Return the parameters of one dense MLP."""
        return (3 if self.gated else 2) * self.hidden * self.width

    @property
    def expert(self) -> int:
        """Return the parameters of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.expert_width

    @property
    def layer(self) -> int:
        """Return the parameters of one layer; norms count, biases do not."""
        mlp = self.experts * self.expert + self.hidden * self.experts if self.experts else self.mlp
        return self.attention + mlp + 2 * self.hidden

    @property
    def table(self) -> int:
        """Return the parameters of the embedding."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Return the model's parameters."""
        return self.layers * self.layer + self.table * (1 if self.tied else 2) + self.hidden


TIED = ("gpt2", "mpt", "opt", "bloom", "falcon", "gemma", "gemma2")
"""Architectures whose output layer is the embedding by default (transformers 5.23.0, configuration_*.py)."""


def _size(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), None)


def sizes_of(config: Mapping[str, Any]) -> StepSizes:
    """Return the sizes of a Hugging Face config; raises ValueError with a size that it leaves out."""
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, Mapping) else config
    wanted = {
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "vocab_size": VOCAB,
    }
    found = {name: _size(config, names) for name, names in wanted.items()}
    missing = [name for name, size in found.items() if not size]
    if missing:
        raise ValueError(f"the model's config has no {missing[0]}")
    layers, hidden, heads, vocab = (found[name] or 0 for name in wanted)
    kind = str(config.get("model_type", ""))
    width = _size(config, WIDTHS) or int(config.get("expansion_ratio", 4)) * hidden
    experts = _size(config, ("num_local_experts", "n_routed_experts", "num_experts")) or 0
    return StepSizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, KEY_VALUE_HEADS) or (1 if config.get("multi_query") else heads),
        head_dim=_size(config, ("head_dim", "v_head_dim")) or hidden // heads,
        width=width,
        vocab=vocab,
        gated=kind not in ("gpt2", "gpt_neox", "mpt", "opt", "bloom", "falcon", "phi", "gpt_neo"),
        tied=bool(config.get("tie_word_embeddings", kind in TIED)),
        experts=experts,
        experts_per_token=_size(config, ("num_experts_per_tok", "experts_per_token")) or 0,
        expert_width=_size(config, ("moe_intermediate_size",)) or width,
    )


def tokens_of(setup: OwnSetup) -> int:
    """Return one rank's tokens of a micro-batch: micro-batch × sequence over context-parallel ranks."""
    return setup.micro_batch_size * (setup.seq_len or 0) // setup.cp
