"""Models that keep the tensors which the published ones keep, for `suite.model`; written from facts.

Each takes the dict of a workload's fields, see `suites.training.models.user_model`. Shapes: B batch, T
tokens, D hidden size, H heads, K size of a head, N tokens of a batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suites.published.litgpt import (
    litgpt_2023_lora,
    litgpt_2023_nf4,
    litgpt_2023_nf4_double,
    litgpt_2023_phi_lora,
    litgpt_2023_phi_nf4,
    litgpt_2023_phi_nf4_double,
    litgpt_2024_adapter,
    litgpt_2024_adapter_nf4,
    litgpt_2024_adapter_nf4_double,
    litgpt_2024_adapter_v2,
    litgpt_2024_adapter_v2_nf4,
    litgpt_2024_adapter_v2_nf4_double,
    litgpt_llama,
    litgpt_lora,
    litgpt_phi,
    rms_norm_in_fp32,
)
from suites.training.models.model import EPSILON, Attention, Functions, PositionTensors, Transformer
from suites.training.workload import Workload

__all__ = [
    "gpt2_from_scratch",
    "litgpt_2023_lora",
    "litgpt_2023_nf4",
    "litgpt_2023_nf4_double",
    "litgpt_2023_phi_lora",
    "litgpt_2023_phi_nf4",
    "litgpt_2023_phi_nf4_double",
    "litgpt_2024_adapter",
    "litgpt_2024_adapter_nf4",
    "litgpt_2024_adapter_nf4_double",
    "litgpt_2024_adapter_v2",
    "litgpt_2024_adapter_v2_nf4",
    "litgpt_2024_adapter_v2_nf4_double",
    "litgpt_llama",
    "litgpt_lora",
    "litgpt_phi",
    "torchtitan_llama",
    "torchtune_llama",
]


def torchtitan_llama(workload: dict[str, Any]) -> nn.Module:
    """Return Llama as torchtitan has it: norm and rotary embedding in fp32, SDPA over repeated heads.

    Facts: torchtitan commit 83c879f18, torchtrain/models/llama/model.py (the same in commit 5940ddeb5). The
    norm widens its input and rounds its result before the weight. Rotary embedding multiplies complex64
    tensors, see `RotatedTogether`.
    """
    shape = Workload(**workload).shape
    model = Transformer(shape, "sdpa", IN_FP32)
    for block in model.blocks:
        block.attention = RotatedTogether(shape, "sdpa", IN_FP32)
    return model


class RotatedTogether(Attention):
    """Attention that makes queries, keys and values, and then rotates queries and keys side by side.

    More is fp32 at once, which changes how far the allocator's memory is fragmented.
    """

    def forward(self, x_BTD: Tensor, positions: PositionTensors) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        rows = (*x_BTD.shape[:2], -1, self.head_size)
        q_BTHK, k_BTGK, v_BTGK = (layer(x_BTD).view(rows) for layer in (self.query, self.key, self.value))
        q_BTHK, k_BTGK = rotated_together([q_BTHK, k_BTGK], positions)
        groups = q_BTHK.shape[2] // k_BTGK.shape[2]
        if groups > 1:
            k_BTGK, v_BTGK = (one.repeat_interleave(groups, dim=2) for one in (k_BTGK, v_BTGK))
        q_BHTK, k_BHTK, v_BHTK = (one.transpose(1, 2) for one in (q_BTHK, k_BTGK, v_BTGK))
        mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.output(mixed_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def torchtune_llama(workload: dict[str, Any]) -> nn.Module:
    """Return Llama as torchtune has it: the same norm, and rotary embedding in fp32.

    Facts: torchtune commit bd2a0fc7c, torchtune/modules/rms_norm.py and position_embeddings.py.
    """
    return Transformer(Workload(**workload).shape, "sdpa", IN_FP32)


def rotated_together(those: list[Tensor], positions: PositionTensors) -> list[Tensor]:
    """Return tensors of (B, T, heads, K) with each step of the rotary embedding done to all before the next.

    What a step makes exists until all are done.
    """
    assert positions.cos_TK is not None
    assert positions.sin_TK is not None
    turns_T1K = turns(positions.cos_TK, positions.sin_TK).unsqueeze(1)
    pairs = [as_pairs(one) for one in those]
    wide = [torch.view_as_real(one * turns_T1K).flatten(-2) for one in pairs]
    return [new.type_as(one) for new, one in zip(wide, those, strict=True)]


def complex_rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Return rotary embedding by a product of complex64 tensors; pairs of neighbours turn together."""
    turned_BHTK = as_pairs(x_BHTK) * turns(cos_TK, sin_TK)
    return torch.view_as_real(turned_BHTK).flatten(-2).type_as(x_BHTK)


def as_pairs(x: Tensor) -> Tensor:
    """Return neighbours of the last dimension as one complex64 number."""
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


def turns(cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Return the rotation of each pair as a complex64 number, of (T, K) tables that have each angle twice."""
    half = cos_TK.shape[-1] // 2
    return torch.complex(cos_TK[:, :half].float(), sin_TK[:, :half].float())


IN_FP32: Functions = {"rms_norm": rms_norm_in_fp32, "rotary": complex_rotary}
"""Parts of `Transformer`; autograd keeps fp32 tensors that fused kernels in bf16 do not."""


class UnfusedLayerNorm(nn.Module):
    """Layer norm from single operations; autograd keeps the results of most of them."""

    def __init__(self, size: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.shift = nn.Parameter(torch.zeros(size))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        centre_BT1 = x_BTD.mean(dim=-1, keepdim=True)
        spread_BT1 = torch.sqrt(x_BTD.var(dim=-1, keepdim=True, unbiased=False) + EPSILON)
        return self.scale * ((x_BTD - centre_BT1) / spread_BT1) + self.shift


class TanhGELU(nn.Module):
    """GELU's tanh form from single operations."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        inner_BTD = math.sqrt(2 / math.pi) * (x_BTD + 0.044715 * torch.pow(x_BTD, 3))
        return 0.5 * x_BTD * (1 + torch.tanh(inner_BTD))


class GPTBlock(nn.Module):
    """One layer of GPT-2 with explicit attention, masked in place, and dropout in three places."""

    def __init__(self, size: int, heads: int, width: int, length: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.mlp_norm = UnfusedLayerNorm(size), UnfusedLayerNorm(size)
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.output = nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, width), TanhGELU(), nn.Linear(width, size))
        self.mask_TT: Tensor
        self.register_buffer("mask_TT", torch.ones(length, length).triu(1))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x_BTD = x_BTD + self._drop(self._attend(self.attention_norm(x_BTD)))
        return x_BTD + self._drop(self.mlp(self.mlp_norm(x_BTD)))

    def _attend(self, x_BTD: Tensor) -> Tensor:
        split = (*x_BTD.shape[:2], self.heads, -1)
        q_BHTK, k_BHTK, v_BHTK = (
            layer(x_BTD).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        length = x_BTD.shape[1]
        scores_BHTT = q_BHTK @ k_BHTK.transpose(2, 3)
        scores_BHTT.masked_fill_(self.mask_TT.bool()[:length, :length], -torch.inf)
        weights_BHTT = self._drop(torch.softmax(scores_BHTT / q_BHTK.shape[-1] ** 0.5, dim=-1))
        return self.output((weights_BHTT @ v_BHTK).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class GPT2FromScratch(nn.Module):
    """GPT-2 with an untied output layer, from single operations."""

    def __init__(self, workload: Workload):
        super().__init__()
        size, length = workload.hidden_size, workload.seq_len
        self.dropout = workload.dropout
        self.token_embedding = nn.Embedding(workload.vocab_size, size)
        self.position_embedding = nn.Embedding(length, size)
        self.blocks = nn.ModuleList(
            GPTBlock(size, workload.num_attention_heads, workload.intermediate_size, length, workload.dropout)
            for _ in range(workload.num_hidden_layers)
        )
        self.norm = UnfusedLayerNorm(size)
        self.head = nn.Linear(size, workload.vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets_BT`, in the type of the logits."""
        places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.token_embedding(tokens_BT) + self.position_embedding(places_T)
        x_BTD = F.dropout(x_BTD, self.dropout, self.training)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return F.cross_entropy(self.head(self.norm(x_BTD)).flatten(0, 1), targets_BT.flatten())


def gpt2_from_scratch(workload: dict[str, Any]) -> nn.Module:
    """Return GPT-2 as rasbt/LLMs-from-scratch has it, commit 7ca7c47, ch05/10_llm-training-speed/00_orig.py.

    Facts: no bias in queries, keys and values; norm and GELU from single operations; a mask of fp32 in each
    layer; scores masked in place; dropout after the embedding, on attention weights and on both branches.
    """
    return GPT2FromScratch(Workload(**workload))
