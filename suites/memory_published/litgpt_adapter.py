"""Models that keep the tensors of litgpt's with LLaMA-Adapter; written from facts, as those of `litgpt.py`.

Facts: litgpt commit 0f021f3a, lit_gpt/adapter.py, adapter_v2.py, model.py and rmsnorm.py, and
finetune/adapter.py and adapter_v2.py. The validation before training stores keys and values of the prompts
without a graph, and training goes on with these: prompts themselves get no gradient, and no optimizer states.

Shapes: those of `litgpt.py`, and L prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suites.memory_published.litgpt import CHUNK, FusedAttention, TwoNormBlock, nf4, nf4_double
from suites.training.models.head_loss import HeadLoss
from suites.training.models.model import EPSILON, Transformer
from suites.training.models.shape import ModelShape
from suites.training.techniques.adapters.llama_adapter import NORMS, ScaledLinear
from suites.training.techniques.adapters.lora import linear_layers
from suites.training.trainer import default_dtype
from suites.training.workload import Workload

PROMPTS, FIRST = 10, 2
"""Prompts per layer, and the first layer that has some."""

StoreLayer = Callable[[nn.Linear], nn.Module]
"""Returns a linear layer as its weight is stored."""


def litgpt_2024_adapter(workload: dict[str, Any]) -> nn.Module:
    """Return Lit-GPT's model of January 2024 with LLaMA-Adapter."""
    return adapted(workload, 1, lambda layer: layer)


def litgpt_2024_adapter_nf4(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2024_adapter` with every linear layer in nf4, see `litgpt.litgpt_2023_nf4`."""
    return adapted(workload, 1, nf4)


def litgpt_2024_adapter_nf4_double(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2024_adapter_nf4` with double quantization."""
    return adapted(workload, 1, nf4_double)


def litgpt_2024_adapter_v2(workload: dict[str, Any]) -> nn.Module:
    """Return Lit-GPT's model of January 2024 with LLaMA-Adapter's version 2."""
    return adapted(workload, 2, lambda layer: layer)


def litgpt_2024_adapter_v2_nf4(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2024_adapter_v2` with every linear layer in nf4."""
    return adapted(workload, 2, nf4)


def litgpt_2024_adapter_v2_nf4_double(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2024_adapter_v2_nf4` with double quantization."""
    return adapted(workload, 2, nf4_double)


def adapted(workload: dict[str, Any], version: int, stored: StoreLayer) -> nn.Module:
    """Return the model with adapters, its linear layers `stored`; logits go when a forward pass begins.

    With RMSNorm it is Llama, with layer norm a model whose attention and MLP take the same input.
    """
    shape = Workload(**workload).shape
    model = Transformer(shape, "sdpa", {"rms_norm": rms_norm_of_2024})
    if shape.norm == "layer":
        model.blocks = nn.ModuleList(TwoNormBlock(shape) for _ in model.blocks)
    for index, block in enumerate(model.blocks):
        block.attention = PromptedAttention(shape) if index >= FIRST else FusedAttention(shape)
    model.requires_grad_(False)
    for one in model.modules():
        if isinstance(one, PromptedAttention):
            one.gate_H11.requires_grad_(True)
            one.prompts_LD.requires_grad_(True)
        elif version == 2 and isinstance(one, NORMS):
            one.requires_grad_(True)
    for name, layer in linear_layers(model).items():
        parent, _, own = name.rpartition(".")
        with default_dtype(torch.float32):
            base = stored(layer)
        setattr(model.get_submodule(parent), own, base if version == 1 else ScaledLinear(base, layer))
    head = model.output_layer()
    loss = HeadLoss(head, "output", -(-workload["seq_len"] // CHUNK), keep="fp32")
    head.forward = model.head_loss = loss
    model.register_forward_pre_hook(lambda *_: loss.let_go())
    return model


class PromptedAttention(FusedAttention):
    """Causal attention, to which that to stored prompts is added with a trained gate per head."""

    def __init__(self, shape: ModelShape):
        super().__init__(shape)
        heads = shape.num_attention_heads
        self.prompts_LD = nn.Parameter(torch.randn(PROMPTS, shape.hidden_size))
        self.gate_H11 = nn.Parameter(torch.zeros(heads, 1, 1))
        self.keys_values: Tensor
        self.register_buffer("keys_values", torch.randn(2, 1, heads, PROMPTS, shape.head_size))

    def attend(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        """Return both attentions' sum. (B, H, T, K)."""
        mixed_BHTK = super().attend(q_BHTK, k_BHTK, v_BHTK)
        k_BHLK, v_BHLK = self.keys_values.expand(-1, len(q_BHTK), -1, -1, -1)
        mask_TL = torch.ones(q_BHTK.shape[2], PROMPTS, dtype=torch.bool, device=q_BHTK.device)
        return mixed_BHTK + self.gate_H11 * F.scaled_dot_product_attention(q_BHTK, k_BHLK, v_BHLK, mask_TL)


def rms_norm_of_2024(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Return RMSNorm from operations in fp32, rounded after the weight; autograd keeps the wide input."""
    wide_ND = x_ND.float()
    scale_N1 = torch.rsqrt((wide_ND * wide_ND).mean(-1, keepdim=True) + EPSILON)
    return (weight_D * (wide_ND * scale_N1)).to(x_ND.dtype)
