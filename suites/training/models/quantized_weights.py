"""Linear layers whose frozen weight is stored in 4 or 8 bits and widened to bf16 for each product.

nf4: QLoRA's (arXiv 2305.14314): half a byte per element, and a maximum per block of 64, as fp32 or, with
double quantization, as one byte with an fp32 maximum per 256 of them. int8: a byte per element and an fp32
maximum per row. A weight is widened a slice at a time, in the forward pass and again in the backward pass.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.instruments.memory.dry_run.fake_tensors import repeatable
from suites.training.optimizers.adamw_8bit import SLICE, dynamic_codes, quantize, slices, widen

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The 16 values of NormalFloat (arXiv 2305.14314, appendix E)."""

BLOCK = 64
"""Weights with a maximum of their own (arXiv 2305.14314, section 3)."""

MAXIMA_BLOCK = 256
"""Maxima with a maximum of their own, under double quantization."""


class FrozenLinear(nn.Module):
    """A linear layer with a quantized weight, which gets no gradient."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.weight.shape
        self.bias = layer.bias

    @abstractmethod
    def weight(self) -> Tensor:
        """Return the weight in bf16, (out_features, in_features)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features), in the input's type."""
        result: Tensor = WidenedProduct.apply(x, self)  # type: ignore[no-untyped-call]
        return result if self.bias is None else result + self.bias


class WidenedProduct(torch.autograd.Function):
    """The product with a weight that exists during the product alone."""

    @staticmethod
    def forward(context: Any, x: Tensor, layer: FrozenLinear) -> Tensor:
        """Return x W^T, computed in bf16, in the type of x."""
        context.layer = layer
        return F.linear(x.to(torch.bfloat16), layer.weight()).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x; the weight has none."""
        return (gradient.to(torch.bfloat16) @ context.layer.weight()).to(gradient.dtype), None


class Nf4Linear(FrozenLinear):
    """A linear layer in nf4, with or without double quantization."""

    packed: Tensor  # two indices per byte
    maxima: Tensor  # fp32; under double quantization, indices
    table: Tensor
    mean: Tensor  # of the maxima
    second: Tensor  # maxima of the maxima
    codes: Tensor

    def __init__(self, layer: nn.Linear, double: bool) -> None:
        super().__init__(layer)
        flat = layer.weight.detach().flatten()
        self.register_buffer("table", torch.tensor(NF4, device=flat.device))
        indices, maxima = quantize(flat.float(), self.table, BLOCK)
        indices = F.pad(indices, (0, len(indices) % 2))
        self.register_buffer("packed", indices[::2] * 16 + indices[1::2])
        self.twice = double
        if double:
            self.register_buffer("mean", maxima.mean())
            self.register_buffer("codes", torch.tensor(dynamic_codes(signed=True), device=flat.device))
            maxima, second = quantize(maxima - self.mean, self.codes, MAXIMA_BLOCK)
            self.register_buffer("second", second)
        self.register_buffer("maxima", maxima)

    def weight(self) -> Tensor:
        """Return the weight in bf16, (out_features, in_features)."""
        count = self.out_features * self.in_features
        flat = torch.empty(count, dtype=torch.bfloat16, device=self.packed.device)

        def fill() -> None:
            for here in slices(flat):
                flat[here] = self._elements(here)

        repeatable(("nf4", count, self.twice), fill)
        return flat.view(self.out_features, self.in_features)

    def _elements(self, here: slice) -> Tensor:
        pairs = self.packed[here.start // 2 : -(-here.stop // 2)]
        indices = torch.stack([pairs >> 4, pairs & 15], 1).flatten()[: here.stop - here.start]
        blocks = slice(here.start // BLOCK, -(-here.stop // BLOCK))
        return widen(indices, self._maxima(blocks), self.table, BLOCK)

    def _maxima(self, blocks: slice) -> Tensor:
        if not self.twice:
            return self.maxima[blocks]
        second = self.second[blocks.start // MAXIMA_BLOCK : -(-blocks.stop // MAXIMA_BLOCK)]
        return widen(self.maxima[blocks], second, self.codes, MAXIMA_BLOCK).add_(self.mean)


class Int8Linear(FrozenLinear):
    """A linear layer in int8, with one fp32 maximum per row (as arXiv 2208.07339 stores weights)."""

    rows: Tensor
    maxima: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        weight = layer.weight.detach().float()
        maxima = weight.abs().amax(1).clamp_(min=torch.finfo(torch.float32).tiny)
        self.register_buffer("rows", (weight * (127 / maxima.unsqueeze(1))).round_().to(torch.int8))
        self.register_buffer("maxima", maxima)

    def weight(self) -> Tensor:
        """Return the weight in bf16, (out_features, in_features)."""
        wide = torch.empty(self.rows.shape, dtype=torch.bfloat16, device=self.rows.device)

        def fill() -> None:
            for here in slices(self.maxima, max(1, SLICE // self.in_features)):
                wide[here] = self.rows[here] * (self.maxima[here] / 127).unsqueeze(1)

        repeatable(("int8", self.out_features, self.in_features), fill)
        return wide
