"""Models that keep the tensors which the published ones keep, for `suite.model`; written from facts.

Each takes the dict of a workload's fields, see `suites.training.user_model`. Shapes: B batch, T tokens,
D hidden size, H heads, K size of a head, N tokens of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suites.training.head_loss import HeadLoss
from suites.training.model import (
    EPSILON,
    GELU,
    Functions,
    ModelShape,
    Places,
    Transformer,
    make_norm,
    rotate,
)
from suites.training.quantized_weights import FrozenLinear, Nf4Linear
from suites.training.techniques.lora import linear_layers
from suites.training.trainer import default_dtype
from suites.training.workload import Workload


def torchtitan_llama(workload: dict[str, Any]) -> nn.Module:
    """Return Llama as torchtitan has it: norm and rotary embedding in fp32, SDPA over repeated heads.

    Facts: torchtitan commit 83c879f18, torchtrain/models/llama/model.py (the same in commit 5940ddeb5). The
    norm widens its input and rounds its result before the weight. Rotary embedding multiplies complex64
    tensors.
    """
    return Transformer(Workload(**workload).shape, "sdpa", IN_FP32)


def torchtune_llama(workload: dict[str, Any]) -> nn.Module:
    """Return Llama as torchtune has it: the same norm, and rotary embedding in fp32.

    Facts: torchtune commit bd2a0fc7c, torchtune/modules/rms_norm.py and position_embeddings.py.
    """
    return Transformer(Workload(**workload).shape, "sdpa", IN_FP32)


def litgpt_llama(workload: dict[str, Any]) -> Transformer:
    """Return Llama as litgpt has it: norm in fp32, and queries, keys and values from one linear layer.

    Facts: litgpt commit 58c5b188, litgpt/model.py. Without grouped queries, values are a view of that layer's
    result, so autograd keeps all of it.
    """
    shape = Workload(**workload).shape
    model = Transformer(shape, "sdpa", {"rms_norm": rms_norm_in_fp32})
    for block in model.blocks:
        block.attention = FusedAttention(shape)
    return model


def litgpt_phi(workload: dict[str, Any]) -> nn.Module:
    """Return phi-2 as litgpt has it: attention and MLP take the same normalized input.

    Facts: litgpt commit 58c5b188, litgpt/model.py and the entry phi-2 of litgpt/config.py. Two differences do
    not change what is kept: a part of each head is rotated there, and the output layer has a bias.
    """
    shape = Workload(**workload).shape
    model = Transformer(shape, "sdpa")
    model.blocks = nn.ModuleList(ParallelBlock(shape) for _ in model.blocks)
    return model


class FusedAttention(nn.Module):
    """Causal attention whose queries, keys and values are parts of one linear layer's result."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.shape = shape
        parts = shape.num_attention_heads + 2 * shape.num_key_value_heads
        self.qkv: nn.Module = nn.Linear(shape.hidden_size, parts * shape.head_size, bias=shape.bias)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BTD: Tensor, places: Places) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        (batch, length, _), shape = x_BTD.shape, self.shape
        groups = shape.num_attention_heads // shape.num_key_value_heads
        grouped = self.qkv(x_BTD).view(batch, length, shape.num_key_value_heads, groups + 2, -1)
        q, k, v = torch.split(grouped.permute(0, 2, 3, 1, 4), [groups, 1, 1], dim=2)
        full = (batch, shape.num_key_value_heads, groups, length, shape.head_size)
        q_BHTK, k_BHTK, v_BHTK = (
            one.expand(full).reshape(batch, -1, length, shape.head_size) for one in (q, k, v)
        )
        q_BHTK, k_BHTK = rotate(q_BHTK, places), rotate(k_BHTK, places)
        mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.output(mixed_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


RANK, ALPHA, DROPOUT, CHUNK = 8, 16, 0.05, 128
"""finetune/lora.py of commit 8641822: adapters, and the tokens of which logits are made at once."""


def litgpt_lora(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_llama` with adapters of rank 32 on queries and values.

    Facts: litgpt commit 58c5b188, litgpt/lora.py and config_hub/finetune/llama-3-8b/lora.yaml.
    """
    model = litgpt_llama(workload)
    adapt(model, 32)
    return model


def lit_gpt_lora(workload: dict[str, Any]) -> nn.Module:
    """Return Llama as Lit-GPT had it in 2023, with adapters on queries and values.

    Facts: litgpt commit 8641822, lit_gpt/model.py, rmsnorm.py and lora.py, and finetune/lora.py, where the
    first micro-batch has the longest sample: nothing of an earlier one of that length is left.
    """
    return lit_gpt(workload, lambda layer: layer)


def lit_gpt_nf4(workload: dict[str, Any]) -> nn.Module:
    """Return `lit_gpt_lora` with every linear layer in nf4.

    Facts: bitsandbytes 0.41.1. autograd/_functions.py: `MatMul4Bit` keeps its input, which its backward pass
    does not need (pull request 1270 removed that). nn/modules.py: weights are quantized from fp16 and so
    widened to it first. Lightning's plugin converts all of nn.Linear, the output layer too.
    """
    return lit_gpt(workload, lambda layer: InputKeeping(Nf4Linear(layer, double=False)))


def lit_gpt_nf4_double(workload: dict[str, Any]) -> nn.Module:
    """Return `lit_gpt_nf4` with double quantization."""
    return lit_gpt(workload, lambda layer: InputKeeping(Nf4Linear(layer, double=True)))


def lit_gpt(workload: dict[str, Any], stored: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """Return Lit-GPT's Llama of 2023, its linear layers `stored`; logits go when a forward pass begins."""
    shape = Workload(**workload).shape
    model = Transformer(shape, "sdpa", {"rms_norm": rms_norm_in_its_type})
    for block in model.blocks:
        block.attention = FusedAttention(shape)
    with default_dtype(torch.float32):
        for name, layer in linear_layers(model).items():
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, stored(layer))
    adapt(model, RANK)
    head = model.output_layer()
    loss = HeadLoss(head, "output", -(-workload["seq_len"] // CHUNK), keep="fp32")
    head.forward = model.head_loss = loss
    model.register_forward_pre_hook(lambda *_: loss.let_go())
    return model


def adapt(model: Transformer, rank: int) -> None:
    """Freeze a model with `FusedAttention`, and give its queries and values adapters."""
    model.requires_grad_(False)
    for one in list(model.modules()):
        if isinstance(one, FusedAttention):
            one.qkv = QueryValueAdapter(one.qkv, one.shape, rank)


class QueryValueAdapter(nn.Module):
    """A fused linear layer and adapters of its queries and values, copied into zeros at their columns.

    Autograd keeps the copied values. Without grouped queries both are one convolution.
    """

    def __init__(self, base: nn.Module, shape: ModelShape, rank: int):
        super().__init__()
        self.base, self.scale = base, ALPHA / rank
        self.sizes = shape.hidden_size, shape.num_key_value_heads * shape.head_size
        self.down = nn.Linear(shape.hidden_size, 2 * rank, bias=False)
        self.up = nn.Parameter(torch.zeros(sum(self.sizes), rank, 1))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D + 2 x the keys' size)."""
        base = self.base(x_BTD)
        low = self.down(F.dropout(x_BTD, DROPOUT, self.training)).transpose(1, 2)
        query, key = self.sizes
        if query == key:
            update = F.conv1d(low, self.up, groups=2)
        else:
            parts = zip(low.chunk(2, 1), torch.split(self.up, list(self.sizes)), strict=True)
            update = torch.cat([F.conv1d(one, up) for one, up in parts], 1)
        rows = update.permute(2, 0, 1).reshape(-1, query + key)
        columns = torch.arange(query + 2 * key, device=rows.device)
        columns = torch.cat([columns[:query], columns[query + key :]])
        full = rows.new_zeros(len(rows), query + 2 * key).index_copy(1, columns, rows)
        full = full.view(x_BTD.shape[1], x_BTD.shape[0], -1).transpose(0, 1)
        return base + full * self.scale  # type: ignore[no-any-return]


class InputKeeping(nn.Module):
    """A quantized layer whose input lives as long as the graph."""

    def __init__(self, layer: FrozenLinear):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        result: Tensor = InputKeepingProduct.apply(x, self.layer)  # type: ignore[no-untyped-call]
        return result


class InputKeepingProduct(torch.autograd.Function):
    """The product with a widened weight; its input is an attribute, which autograd does not free."""

    @staticmethod
    def forward(context: Any, x: Tensor, layer: FrozenLinear) -> Tensor:
        """Return x W^T."""
        context.kept, context.layer = x, layer
        return F.linear(x, through_fp16(layer, x.dtype))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x; the weight has none."""
        return gradient @ through_fp16(context.layer, gradient.dtype), None


def through_fp16(layer: FrozenLinear, dtype: torch.dtype) -> Tensor:
    """Return the weight in `dtype`, by way of a copy in fp16."""
    return layer.weight().half().to(dtype)


class ParallelBlock(nn.Module):
    """One layer whose attention and MLP share a norm."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.norm = make_norm(shape)
        self.attention = FusedAttention(shape)
        self.mlp = GELU(shape)

    def forward(self, x_BTD: Tensor, places: Places) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        normal_BTD = self.norm(x_BTD)
        return self.mlp(normal_BTD) + self.attention(normal_BTD, places) + x_BTD  # type: ignore[no-any-return]


def rms_norm_in_fp32(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Return RMSNorm from operations in fp32; autograd keeps the wide input and the narrow result."""
    wide_ND = x_ND.float()
    scale_N1 = torch.rsqrt(wide_ND.pow(2).mean(-1, keepdim=True) + EPSILON)
    return (wide_ND * scale_N1).type_as(x_ND) * weight_D


def rms_norm_in_its_type(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Return RMSNorm from operations in the type of its input, which autograd keeps."""
    return weight_D * (x_ND * torch.rsqrt((x_ND * x_ND).mean(-1, keepdim=True) + EPSILON))


def complex_rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Return rotary embedding by a product of complex64 tensors; pairs of neighbours turn together."""
    half = x_BHTK.shape[-1] // 2
    turns_TK = torch.complex(cos_TK[:, :half].float(), sin_TK[:, :half].float())
    pairs_BHTK = torch.view_as_complex(x_BHTK.float().reshape(*x_BHTK.shape[:-1], half, 2))
    return torch.view_as_real(pairs_BHTK * turns_TK).flatten(-2).type_as(x_BHTK)


IN_FP32: Functions = {"rms_norm": rms_norm_in_fp32, "rotary": complex_rotary}
"""Parts of `Transformer`; autograd keeps fp32 tensors that fused kernels in bf16 do not."""


class LayerNorm(nn.Module):
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
        self.attention_norm, self.mlp_norm = LayerNorm(size), LayerNorm(size)
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
        self.norm = LayerNorm(size)
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
