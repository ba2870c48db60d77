"""Linear layers' products in float8 with dynamic tensorwise scaling, as torchtitan's default with torchao.

In the forward pass inputs and weights are e4m3, in the backward pass gradients are e5m2 (arXiv 2209.05433).
Each operand has one scale, found when it is cast. Inputs and weights are kept in their own type and are cast
again in the backward pass, so eager float8 saves no activations; compiled code fuses the casts and has fewer
temporaries.

It takes the linear layers of the model's layers. Under `fsdp2` parameters are
gathered in the type of its mixed precision, not in float8.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harness.records import Unavailable
from suites.training.declared import Float8Settings
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of
from suites.training.step import Contract, TrainingStep, Within
from suites.training.workload import Workload

TOLERANCE = 2e-2
"""Allowed error as a share of the first loss: e4m3 has 4 bits of significand, e5m2 3."""

MULTIPLE = 16
"""Sizes of a float8 product on CUDA are multiples of it (torch._scaled_mm)."""

UNLIKE = "the formula has products in 16 bits; this step's are in float8, with temporary copies"


def contract(settings: Float8Settings) -> Contract:
    """Return the tolerance of products of operands rounded to float8."""
    return Within(TOLERANCE)


def applies_to(workload: Workload, settings: Float8Settings) -> str | None:
    """Return why torch has no such product; None where it has."""
    tokens = workload.micro_batch_size * workload.seq_len
    sizes = {
        "hidden_size": workload.hidden_size,
        "intermediate_size": workload.intermediate_size,
        "micro_batch_size x seq_len": tokens,
    }
    for name, size in sizes.items():
        if size % MULTIPLE:
            return f"{name}={size} is no multiple of {MULTIPLE}, which float8 products need"
    return None


def apply(step: TrainingStep, settings: Float8Settings) -> TrainingStep:
    """Return the step with float8 products."""
    features = step.features.but(activations=UNLIKE)
    return replace(step, wraps=(*step.wraps, use_float8), features=features)


def use_float8(model: nn.Module, resources: Resources) -> nn.Module:
    """Replace the products of the model's layers; parameters keep their names."""
    layers = [one for one in blocks_of(model).modules() if isinstance(one, nn.Linear)]
    if not layers:
        raise Unavailable("float8: the model's layers have no nn.Linear")
    for layer in layers:
        layer.forward = partial(linear, layer)  # type: ignore[method-assign]
    return model


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Map (..., in_features) to (..., out_features); under autocast in its type."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    result: Tensor = Product.apply(x, layer.weight)  # type: ignore[no-untyped-call]
    return result if layer.bias is None else result + layer.bias.to(result.dtype)


class Product(torch.autograd.Function):
    """x W^T with operands in float8, in both passes; shapes (..., I), (O, I), N tokens."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight_OI: Tensor) -> Tensor:
        """Return the product in the type of x."""
        context.save_for_backward(x, weight_OI)
        x_NI, weight = Scaled(x.flatten(0, -2)), Scaled(weight_OI)
        return multiply(x_NI, weight.transposed(), x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and of the weight, in their types."""
        x, weight_OI = context.saved_tensors
        gradient_NO = Scaled(gradient.flatten(0, -2), torch.float8_e5m2)
        of_x = multiply(gradient_NO, Scaled(weight_OI).by_columns(), x.dtype).view_as(x)
        x_NI = Scaled(x.flatten(0, -2))
        of_weight = multiply(gradient_NO.transposed().by_rows(), x_NI.by_columns(), weight_OI.dtype)
        return of_x, of_weight


class Scaled:
    """A matrix in float8 and the number to multiply it by."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> None:
        largest = torch.finfo(dtype).max
        scale = largest / matrix.abs().amax().float().clamp_(min=1e-12)
        self.matrix = (matrix.float() * scale).clamp(-largest, largest).to(dtype)  # as torchao, eager
        self.inverse = scale.reciprocal()

    def _with(self, matrix: Tensor) -> Scaled:
        other = object.__new__(Scaled)
        other.matrix, other.inverse = matrix, self.inverse
        return other

    def transposed(self) -> Scaled:
        """Return a transposed view."""
        return self._with(self.matrix.t())

    def by_rows(self) -> Scaled:
        """Return a copy whose rows are contiguous, as CUDA needs the first operand."""
        return self._with(self.matrix.contiguous())

    def by_columns(self) -> Scaled:
        """Return a copy whose columns are contiguous, as CUDA needs the second operand."""
        return self._with(self.matrix.t().contiguous().t())


def multiply(one: Scaled, other: Scaled, dtype: torch.dtype) -> Tensor:
    """Return the product in `dtype`."""
    product: Tensor = torch._scaled_mm(
        one.matrix, other.matrix, scale_a=one.inverse, scale_b=other.inverse, out_dtype=dtype
    )
    return product
