"""Model code of one's own for the memory suite: `suite.model=my_models:make`, or `:from_transformers`."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class Decoder(nn.Module):
    """Layers in an nn.ModuleList, so that FSDP2 and checkpointing find them. The forward pass is the loss."""

    def __init__(self, layers: int, width: int, heads: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets_BT`, a scalar tensor."""
        mask_TT = nn.Transformer.generate_square_subsequent_mask(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, src_mask=mask_TT.to(x_BTD.dtype), is_causal=True)
        return F.cross_entropy(self.head(x_BTD).float().flatten(0, 1), targets_BT.flatten())


def make(workload: dict[str, Any]) -> nn.Module:
    """Return the model of a workload, whose fields are those of conf/suite/memory.yaml."""
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    return Decoder(*(workload[name] for name in sizes))


class WithLoss(nn.Module):
    """A module that returns logits, as those of transformers do, with a loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets_BT`, a scalar tensor."""
        logits_BTV = self.model(input_ids=tokens_BT, use_cache=False).logits
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())


def from_transformers(workload: dict[str, Any]) -> nn.Module:
    """Return a model of transformers, configured in code."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    config = LlamaConfig(
        **{name: workload[name] for name in (*sizes, "intermediate_size")}, attn_implementation="sdpa"
    )
    return WithLoss(LlamaForCausalLM(config))
