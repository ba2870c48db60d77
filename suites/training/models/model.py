"""The decoder-only transformer that suites train; one class for Llama's shapes and GPT's.

Shape suffixes: B batch, T tokens of a sequence, S tokens of its keys where these are more, D hidden size, H
query heads, G key-value heads, K size of a head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.records import Unavailable
from suites.training.models.head_loss import HeadLoss
from suites.training.models.mixture import Experts, MixtureMLP
from suites.training.workload import ModelShape

EPSILON = 1e-5
ROTARY_BASE = 10_000.0
INITIAL_DEVIATION = 0.02  # GPT-2's

Functions = Mapping[str, Callable[..., Any]]
"""Replacements for parts of the model, by name; a part without one uses its module's code.

rms_norm(x_ND, weight_D); rotary(x_BHTK, cos_TK, sin_TK); attention(q_BHTK, k_BHTK, v_BHTK, causal);
swiglu(gate_ND, up_ND); linear_cross_entropy(x_ND, weight_VD, targets_N).
"""

NONE: Functions = {}


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """Return the model's layers: `model.blocks`, or the longest list of modules; raises Unavailable."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleList):
        return blocks
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise Unavailable(f"{type(model).__name__} keeps its layers in no nn.ModuleList")
    return max(lists, key=len)


class PositionTensors(NamedTuple):
    """Positions that a block needs: rotary tables, and the mask of explicit attention."""

    cos_TK: Tensor | None
    sin_TK: Tensor | None
    masked_TS: Tensor | None  # True where a query must not attend


class SequenceShard(NamedTuple):
    """The tokens of each sequence that one rank takes, see `techniques/context_parallel.py`."""

    positions_T: Tensor
    length: int  # of a full sequence


class RMSNormBy(nn.RMSNorm):
    """RMSNorm by a given function."""

    def __init__(self, hidden_size: int, function: Callable[..., Any]):
        super().__init__(hidden_size, EPSILON)
        self.function = function

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.function(x_BTD.flatten(0, -2), self.weight).view_as(x_BTD)  # type: ignore[no-any-return]


def make_norm(shape: ModelShape, functions: Functions = NONE) -> nn.Module:
    """Return RMSNorm, or LayerNorm with or without its bias."""
    if shape.norm == "rms" and "rms_norm" in functions:
        return RMSNormBy(shape.hidden_size, functions["rms_norm"])
    if shape.norm == "rms":
        return nn.RMSNorm(shape.hidden_size, eps=EPSILON)
    return nn.LayerNorm(shape.hidden_size, eps=EPSILON, bias=shape.bias)


def rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Apply rotary position embedding (arXiv 2104.09864) in the halves form of Llama's public weights."""
    first, second = x_BHTK.chunk(2, dim=-1)
    turned_BHTK = torch.cat((-second, first), dim=-1)
    return x_BHTK * cos_TK.to(x_BHTK.dtype) + turned_BHTK * sin_TK.to(x_BHTK.dtype)


def rotate(x_BHTK: Tensor, positions: PositionTensors, rotary: Callable[..., Any] = rotary) -> Tensor:
    """Return queries or keys rotated by their positions; unchanged in a model without rotary positions."""
    if positions.cos_TK is None or positions.sin_TK is None:
        return x_BHTK
    return rotary(x_BHTK, positions.cos_TK, positions.sin_TK)  # type: ignore[no-any-return]


def rotary_tables(length: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of (length, head_size), fp32: each angle twice, for the two halves."""
    rates = ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def causal_sdpa(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, dropout: float) -> Tensor:
    """Compute attention by torch's fused kernel for the device and type. (B, H, T, K)."""
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout_p=dropout)


class Attention(nn.Module):
    """Causal self-attention; `kind` is "explicit" (scores stored as a tensor) or "sdpa".

    `gather`: takes keys, or values, of part of a sequence and returns those of all of it. `prompts`: takes
    queries and the layers of keys and values, and returns what is added, see
    `techniques/llama_adapter.py`.
    """

    def __init__(self, shape: ModelShape, kind: str, functions: Functions = NONE):
        super().__init__()
        self.kind = kind
        self.attend = functions.get("attention")
        self.sdpa = causal_sdpa
        self.gather: Callable[[Tensor], Tensor] | None = None
        self.prompts: nn.Module | None = None
        self.rotary = functions.get("rotary", rotary)
        self.head_size = shape.head_size
        self.dropout = shape.dropout
        kv = shape.num_key_value_heads * shape.head_size
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)
        self.key = nn.Linear(shape.hidden_size, kv, bias=shape.bias)
        self.value = nn.Linear(shape.hidden_size, kv, bias=shape.bias)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BTD: Tensor, positions: PositionTensors) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        q_BHTK = rotate(self._heads(self.query(x_BTD)), positions, self.rotary)
        k_BGTK = rotate(self._heads(self.key(x_BTD)), positions, self.rotary)
        v_BGTK = self._heads(self.value(x_BTD))
        if self.gather is not None:
            k_BGTK, v_BGTK = self.gather(k_BGTK), self.gather(v_BGTK)
        groups = q_BHTK.shape[1] // k_BGTK.shape[1]
        if groups > 1:
            k_BGTK = k_BGTK.repeat_interleave(groups, dim=1)
            v_BGTK = v_BGTK.repeat_interleave(groups, dim=1)
        dropout = self.dropout if self.training else 0.0
        if self.attend is not None:
            attended_BHTK = self.attend(q_BHTK, k_BGTK, v_BGTK, True)
        elif self.kind == "sdpa":
            attended_BHTK = self.sdpa(q_BHTK, k_BGTK, v_BGTK, dropout)
        else:
            attended_BHTK = explicit_attention(q_BHTK, k_BGTK, v_BGTK, positions.masked_TS, dropout)
        if self.prompts is not None:
            attended_BHTK = attended_BHTK + self.prompts(q_BHTK, self.key, self.value)
        return self.output(attended_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.view(*x_BTD.shape[:2], -1, self.head_size).transpose(1, 2)


def causal_mask(length: int, device: torch.device, shard: SequenceShard | None = None) -> Tensor:
    """Return (T, S), True where a query must not attend; with `shard`, the rows of its queries."""
    if shard is not None:
        return torch.arange(length, device=device) > shard.positions_T[:, None]
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def explicit_attention(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, masked_TS: Tensor | None, dropout: float
) -> Tensor:
    """Compute attention explicitly: scores, mask, softmax, dropout, weighted sum. (B, H, T, K)."""
    scores_BHTS = q_BHTK @ k_BHTK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])
    if masked_TS is not None:
        scores_BHTS = scores_BHTS.masked_fill(masked_TS, float("-inf"))
    weights_BHTS = F.dropout(F.softmax(scores_BHTS, dim=-1), dropout)
    return weights_BHTS @ v_BHTK


class SwiGLUMLP(nn.Module):
    """Llama's gated feed-forward layer: three matrices."""

    def __init__(self, shape: ModelShape, functions: Functions = NONE, width: int | None = None):
        super().__init__()
        width = shape.intermediate_size if width is None else width
        self.gated = functions.get("swiglu")
        self.gate = nn.Linear(shape.hidden_size, width, bias=shape.bias)
        self.up = nn.Linear(shape.hidden_size, width, bias=shape.bias)
        self.down = nn.Linear(width, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        if self.gated is None:
            return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))  # type: ignore[no-any-return]
        gated_ND = self.gated(self.gate(x_BTD).flatten(0, -2), self.up(x_BTD).flatten(0, -2))
        return self.down(gated_ND).view_as(x_BTD)  # type: ignore[no-any-return]


class GELUMLP(nn.Module):
    """GPT's feed-forward layer: two matrices."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=shape.bias)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.down(F.gelu(self.up(x_BTD), approximate="tanh"))  # type: ignore[no-any-return]


def make_mlp(shape: ModelShape, functions: Functions = NONE) -> nn.Module:
    """Return the feed-forward layer: one MLP, or a mixture of experts, which are SwiGLU without biases."""
    if shape.num_experts is None:
        return SwiGLUMLP(shape, functions) if shape.mlp == "swiglu" else GELUMLP(shape)
    if shape.mlp != "swiglu" or shape.bias:
        raise ValueError("experts are SwiGLU MLPs without biases; set mlp=swiglu and bias=false")
    width = shape.shared_expert_intermediate_size
    shared = None if width is None else SwiGLUMLP(shape, functions, width)
    sizes = (shape.hidden_size, shape.expert_width, shape.num_experts, shape.num_experts_per_tok)
    return MixtureMLP(*sizes, shared)


class TransformerBlock(nn.Module):
    """One layer: norm, attention, norm, feed-forward, each with its residual."""

    def __init__(self, shape: ModelShape, attention: str, functions: Functions = NONE):
        super().__init__()
        self.attention_norm = make_norm(shape, functions)
        self.attention = Attention(shape, attention, functions)
        self.mlp_norm = make_norm(shape, functions)
        self.mlp = make_mlp(shape, functions)
        self.dropout = shape.dropout

    def forward(self, x_BTD: Tensor, positions: PositionTensors) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x_BTD = x_BTD + self._drop(self.attention(self.attention_norm(x_BTD), positions))
        return x_BTD + self._drop(self.mlp(self.mlp_norm(x_BTD)))

    def _drop(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(x_BTD, self.dropout, self.training)


class Transformer(nn.Module):
    """The model with its loss. `attention` is "explicit" or "sdpa"; `blocks` are uniform.

    `functions` replace parts of it; without any, it is plain PyTorch.
    """

    def __init__(self, shape: ModelShape, attention: str = "explicit", functions: Functions = NONE):
        super().__init__()
        heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        if shape.hidden_size % heads or heads % kv_heads:
            raise ValueError(
                f"hidden_size={shape.hidden_size} must be a multiple of num_attention_heads={heads}, and "
                f"that of num_key_value_heads={kv_heads}"
            )
        self.shape = shape
        self.attention = attention
        self.functions = dict(functions)
        self.head_loss: HeadLoss | None = None  # in place of the output layer's logits
        self.around_loss: Callable[[Callable[[], Any]], Tensor] = called
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        learned = shape.position == "learned"
        sizes = shape.max_position_embeddings, shape.hidden_size
        self.position_embedding = nn.Embedding(*sizes) if learned else None
        self.blocks = nn.ModuleList(
            TransformerBlock(shape, attention, functions) for _ in range(shape.num_hidden_layers)
        )
        self.norm = make_norm(shape, functions)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        if shape.tie_word_embeddings:
            self.head.weight = self.token_embedding.weight
        if shape.position == "rotary":
            self._make_rotary_tables()
        self.apply(initialise)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor, shard: SequenceShard | None = None) -> Tensor:
        """Return the mean cross-entropy of predicting `targets_BT` (int64), as an fp32 scalar tensor.

        `shard`: which tokens of each sequence these are; None: all.
        """
        positions = self.positions(tokens_BT.shape[1], tokens_BT.device, shard)
        x_BTD = self.embed(tokens_BT, shard)
        for block in self.blocks:
            x_BTD = block(x_BTD, positions)
        x_BTD = self.norm(x_BTD)
        return self.loss(x_BTD, targets_BT)

    def embed(self, tokens_BT: Tensor, shard: SequenceShard | None = None) -> Tensor:
        """Return the first layer's input (B, T, D)."""
        x_BTD = self.token_embedding(tokens_BT)
        if self.position_embedding is not None:
            if shard is None:
                positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
            else:
                positions_T = shard.positions_T
            x_BTD = x_BTD + self.position_embedding(positions_T)
        return F.dropout(x_BTD, self.shape.dropout, self.training)

    def loss(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets_BT` from the last norm's result."""
        return self.around_loss(lambda: self._loss(x_BTD, targets_BT))

    def _loss(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        if self.head_loss is not None:
            return self.head_loss.run(lambda: self.head(x_BTD), targets_BT)
        if "linear_cross_entropy" in self.functions:
            loss = self.functions["linear_cross_entropy"]
            return loss(x_BTD.flatten(0, 1), self.head.weight, targets_BT.flatten())  # type: ignore[no-any-return]
        logits_BTV = self.head(x_BTD)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())

    def output_layer(self) -> nn.Module:
        """Return the layer that makes logits."""
        return self.head

    def ends(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the token embedding, the last norm and the output layer."""
        return self.token_embedding, self.norm, self.head

    def positions(
        self, length: int, device: torch.device, shard: SequenceShard | None = None
    ) -> PositionTensors:
        """Return the positions of sequences of so many tokens, or of this rank's part of each."""
        masked_TS = None
        if shard is not None:
            length = shard.length
        if length > self.shape.max_position_embeddings:
            most = f"max_position_embeddings={self.shape.max_position_embeddings}"
            raise ValueError(f"a sequence of {length} tokens is longer than {most}")
        if self.attention == "explicit" and "attention" not in self.functions:
            masked_TS = causal_mask(length, device, shard)
        if self.shape.position == "learned":
            return PositionTensors(None, None, masked_TS)
        which = slice(length) if shard is None else shard.positions_T
        return PositionTensors(self.cos_TK[which], self.sin_TK[which], masked_TS)

    def _make_rotary_tables(self) -> None:
        dtype = torch.get_default_dtype()
        cos_TK, sin_TK = rotary_tables(self.shape.max_position_embeddings, self.shape.head_size)
        self.cos_TK: Tensor
        self.sin_TK: Tensor
        self.register_buffer("cos_TK", cos_TK.to(dtype), persistent=False)
        self.register_buffer("sin_TK", sin_TK.to(dtype), persistent=False)


def called(loss: Callable[[], Any]) -> Tensor:
    """Return the loss that a function computes; techniques replace it where logits are sharded."""
    return loss()  # type: ignore[no-any-return]


def linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the output layer's loss: mean cross-entropy of x W^T, at least fp32, a scalar tensor."""
    logits_NV = F.linear(x_ND, weight_VD)
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    return F.cross_entropy(logits_NV.to(wide), targets_N)


def initialise(module: nn.Module) -> None:
    """Initialize weights from a normal distribution of deviation 0.02, biases with zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, Experts):
        for weight in module.parameters():
            nn.init.normal_(weight, std=INITIAL_DEVIATION)
