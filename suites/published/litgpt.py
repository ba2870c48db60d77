"""Models that keep the tensors of litgpt's, and of the quantized layers it was run with; written from facts.

Each takes the dict of a workload's fields, see `suites.training.models.user_model`. Shapes: B batch, T
tokens, D hidden size, K size of a head, N tokens of a batch.

Models that keep the tensors of litgpt's with LLaMA-Adapter; written from facts, as those of `litgpt.py`.

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

from suites.training.models.head_loss import HeadLoss
from suites.training.models.model import EPSILON, GELUMLP, PositionTensors, Transformer, make_norm, rotate
from suites.training.quantization import FrozenLinear, Nf4Linear
from suites.training.techniques.llama_adapter import NORMS, ScaledLinear
from suites.training.techniques.lora import linear_layers
from suites.training.trainer import default_dtype
from suites.training.workload import ModelShape, Workload


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
    """Causal attention whose queries, keys and values are parts of one linear layer's result.

    Queries and keys are joined with what was not rotated of them, by a copy in the order (B, H, T, K). SDPA's
    flash kernel lays its result out as its queries (torch 2.1: ATen/native/transformers/cuda/attention.cu,
    `_flash_attention_forward`, for one sequence), so that the output layer's input is a copy of it.
    """

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.shape = shape
        parts = shape.num_attention_heads + 2 * shape.num_key_value_heads
        self.qkv: nn.Module = nn.Linear(shape.hidden_size, parts * shape.head_size, bias=shape.bias)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BTD: Tensor, positions: PositionTensors) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        (batch, length, _), shape = x_BTD.shape, self.shape
        groups = shape.num_attention_heads // shape.num_key_value_heads
        grouped = self.qkv(x_BTD).view(batch, length, shape.num_key_value_heads, groups + 2, -1)
        q, k, v = torch.split(grouped.permute(0, 2, 3, 1, 4), [groups, 1, 1], dim=2)
        full = (batch, shape.num_key_value_heads, groups, length, shape.head_size)
        q_BHTK, k_BHTK, v_BHTK = (
            one.expand(full).reshape(batch, -1, length, shape.head_size) for one in (q, k, v)
        )
        q_BHTK, k_BHTK = (rotate(one, positions).contiguous() for one in (q_BHTK, k_BHTK))
        mixed_BHTK = self.attend(q_BHTK, k_BHTK, v_BHTK)
        return self.output(mixed_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def attend(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        """Return causal attention. (B, H, T, K)."""
        return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)


RANK, ALPHA, DROPOUT, CHUNK = 8, 16, 0.05, 128
"""finetune/lora.py of commit 8641822: adapters, and the tokens of which logits are made at once."""


def litgpt_lora(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_llama` with adapters of rank 32 on queries and values.

    Facts: litgpt commit 58c5b188, litgpt/lora.py and config_hub/finetune/llama-3-8b/lora.yaml.
    """
    model = litgpt_llama(workload)
    adapt(model, 32)
    return model


def litgpt_2023_lora(workload: dict[str, Any]) -> nn.Module:
    """Return Llama or StableLM Alpha as Lit-GPT had it in 2023, with adapters on queries and values.

    Facts: litgpt commit 8641822, lit_gpt/model.py, config.py and lora.py, and finetune/lora.py, where the
    first micro-batch has the longest sample: nothing of an earlier one of that length is left.
    """
    return litgpt_2023(workload, lambda layer: layer)


def litgpt_2023_nf4(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2023_lora` with every linear layer in nf4, also the output layer, as Lightning does."""
    return litgpt_2023(workload, nf4)


def litgpt_2023_nf4_double(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2023_nf4` with double quantization."""
    return litgpt_2023(workload, nf4_double)


def litgpt_2023_phi_lora(workload: dict[str, Any]) -> nn.Module:
    """Return phi-1.5, whose attention and MLP share a norm, as `litgpt_2023_lora` returns other models."""
    return litgpt_2023(workload, lambda layer: layer, ParallelBlock)


def litgpt_2023_phi_nf4(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2023_phi_lora` with every linear layer in nf4."""
    return litgpt_2023(workload, nf4, ParallelBlock)


def litgpt_2023_phi_nf4_double(workload: dict[str, Any]) -> nn.Module:
    """Return `litgpt_2023_phi_nf4` with double quantization."""
    return litgpt_2023(workload, nf4_double, ParallelBlock)


def nf4(layer: nn.Linear) -> nn.Module:
    """Return a linear layer in nf4, as bitsandbytes 0.41.1 runs it.

    autograd/_functions.py: `MatMul4Bit` keeps its input, which its backward pass does not need (pull request
    1270 removed that). nn/modules.py: weights are quantized from fp16 and so widened to it first.
    """
    return InputKeeping(Nf4Linear(layer, double=False))


def nf4_double(layer: nn.Linear) -> nn.Module:
    """Return a linear layer in nf4 with double quantization."""
    return InputKeeping(Nf4Linear(layer, double=True))


def litgpt_2023(
    workload: dict[str, Any],
    stored: Callable[[nn.Linear], nn.Module],
    parallel: Callable[[ModelShape], nn.Module] | None = None,
) -> nn.Module:
    """Return a model of Lit-GPT in 2023, its linear layers `stored`; logits go when a forward pass begins.

    `parallel`: its layers, where attention and MLP take the same input; None: `TwoNormBlock` for those with
    layer norm, and Llama's for others. Inferred from the published figures: Llama's norm in fp32 (commit
    6178c7cc). Commit 8641822 has it in bf16.
    """
    shape = Workload(**workload).shape
    model = Transformer(shape, "sdpa", {"rms_norm": rms_norm_in_fp32})
    if parallel is None and shape.norm == "layer":
        parallel = TwoNormBlock
    if parallel is not None:
        model.blocks = nn.ModuleList(parallel(shape) for _ in model.blocks)
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
        self.mlp = GELUMLP(shape)

    def forward(self, x_BTD: Tensor, positions: PositionTensors) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        normal_BTD = self.norm(x_BTD)
        return self.mlp(normal_BTD) + self.attention(normal_BTD, positions) + x_BTD  # type: ignore[no-any-return]


class TwoNormBlock(nn.Module):
    """One layer whose attention and MLP take the same input, each by its own norm."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.attention_norm, self.mlp_norm = make_norm(shape), make_norm(shape)
        self.attention: nn.Module = nn.Identity()
        self.mlp = GELUMLP(shape)

    def forward(self, x_BTD: Tensor, positions: PositionTensors) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        attended_BTD = self.attention(self.attention_norm(x_BTD), positions)
        return self.mlp(self.mlp_norm(x_BTD)) + attended_BTD + x_BTD  # type: ignore[no-any-return]


def rms_norm_in_fp32(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Return RMSNorm from operations in fp32; autograd keeps the wide input and the narrow result."""
    wide_ND = x_ND.float()
    scale_N1 = torch.rsqrt(wide_ND.pow(2).mean(-1, keepdim=True) + EPSILON)
    return (wide_ND * scale_N1).type_as(x_ND) * weight_D


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
