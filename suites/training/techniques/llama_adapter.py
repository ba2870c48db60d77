"""LLaMA-Adapter (arXiv 2303.16199) and its version 2 (arXiv 2304.15010): learned prompts in a frozen model.

In each layer from `start_layer` on, all tokens also attend to prompts of that layer. The result is multiplied
by one number per head, which is zero at first, and added. Version 2 also trains the norms, and a scale and a
bias for the results of each linear layer, the output layer too. The frozen base may be stored in fewer bits,
as in `lora`. A quantized base is not sharded.

Shapes: those of `suites.training.models.model`, and L prompts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.records import Unavailable
from suites.training.declared import LlamaAdapterSettings
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of, explicit_attention
from suites.training.step import CHANGES_THE_MATHEMATICS, Contract, TrainingStep
from suites.training.techniques.lora import freeze, with_frozen_base
from suites.training.workload import Workload

LEARNING_RATE = 9e-3
"""Learning rate, unless the workload sets one (arXiv 2303.16199, section 4.1): gates are zero at first."""

NORMS = nn.RMSNorm, nn.LayerNorm


def contract(settings: LlamaAdapterSettings) -> Contract:
    """Return `CHANGES_THE_MATHEMATICS`: other parameters are trained."""
    return CHANGES_THE_MATHEMATICS


def applies_to(workload: Workload, settings: LlamaAdapterSettings) -> str | None:
    """Return why no layer would have prompts; None where some have."""
    if settings.start_layer >= workload.num_hidden_layers:
        last = f"the last layer, {workload.num_hidden_layers - 1}"
        return f"start_layer={settings.start_layer}: allowed are 0 to {last}"
    return None


def apply(step: TrainingStep, settings: LlamaAdapterSettings) -> TrainingStep:
    """Return the step with a frozen model and adapters; raises `Unavailable` for another model."""
    if step.make_model is not None:
        raise Unavailable(
            "llama_adapter: prompts are built for the attention of suites.training.models.model alone"
        )
    step = with_frozen_base("llama_adapter", step, settings.base)
    rate = LEARNING_RATE if step.workload.learning_rate is None else step.workload.learning_rate
    trained = "prompts" if settings.version == 1 else "prompts, norms, scales and biases"
    return replace(
        step,
        workload=replace(step.workload, learning_rate=rate),
        wraps=(*step.wraps, partial(insert, settings, step.attention)),
        notes=(*step.notes, f"LLaMA-Adapter: gradients and optimizer states of {trained} alone"),
    )


def insert(settings: LlamaAdapterSettings, kind: str, model: nn.Module, resources: Resources) -> nn.Module:
    """Freeze the model, quantize its layers and add adapters; of too few layers all have prompts."""
    blocks = blocks_of(model)
    dtype = next(model.parameters()).dtype
    with_prompts = list(blocks)[settings.start_layer :] or blocks

    def adapt(name: str, base: nn.Module, layer: nn.Linear) -> nn.Module:
        return base if settings.version == 1 else ScaledLinear(base, layer)

    freeze(model, settings, adapt)
    for block in with_prompts:
        attention: Any = block.attention
        attention.prompts = Prompts(model, settings.prompt_length, kind, dtype)
    for one in model.modules():
        if settings.version == 2 and isinstance(one, NORMS):
            one.requires_grad_(True)
    return model


class Prompts(nn.Module):
    """One layer's prompts, and how much their values count for each head."""

    def __init__(self, model: Any, length: int, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        shape, device = model.shape, model.token_embedding.weight.device
        with torch.device(device):
            self.prompts_LD = nn.Parameter(torch.randn(length, shape.hidden_size, dtype=dtype))
            self.gate_H11 = nn.Parameter(torch.zeros(shape.num_attention_heads, 1, 1, dtype=dtype))
        self.kind, self.head_size = kind, shape.head_size

    def forward(self, q_BHTK: Tensor, key: nn.Module, value: nn.Module) -> Tensor:
        """Return the attention of queries to the prompts, times the gates. (B, H, T, K)."""
        k_BHLK, v_BHLK = (self._heads(layer(self.prompts_LD), q_BHTK) for layer in (key, value))
        if self.kind == "explicit":
            mixed_BHTK = explicit_attention(q_BHTK, k_BHLK, v_BHLK, None, 0.0)
        else:
            mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHLK, v_BHLK)
        return self.gate_H11 * mixed_BHTK

    def _heads(self, x_LD: Tensor, q_BHTK: Tensor) -> Tensor:
        x_GLK = x_LD.view(len(x_LD), -1, self.head_size).transpose(0, 1)
        x_HLK = x_GLK.repeat_interleave(q_BHTK.shape[1] // len(x_GLK), dim=0)
        return x_HLK.expand(len(q_BHTK), -1, -1, -1)


class ScaledLinear(nn.Module):
    """A frozen linear layer, to whose result a trained bias is added before a trained scale."""

    def __init__(self, base: nn.Module, shape: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.bias = nn.Parameter(shape.weight.new_zeros(shape.out_features))
        self.scale = nn.Parameter(shape.weight.new_ones(shape.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return self.scale * (self.base(x) + self.bias)  # type: ignore[no-any-return]
