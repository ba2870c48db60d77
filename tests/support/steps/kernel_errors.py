"""How far a kernel is from plain PyTorch in float64, output and gradients, and for which GPUs it compiles."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.instruments.triton_kernels.targets import TARGETS

EVERY_TARGET = [
    *(("bf16", target) for target in TARGETS),
    *(("fp32", one) for one in ("sm_80", "sm_90", "gfx942")),
]
"""A target's own instructions show in one type, a type's own arithmetic on one target a maker."""


def results(function: Any, inputs: Sequence[Any], upstream: Tensor) -> list[Tensor]:
    output = function(*inputs)
    wanted = [one for one in inputs if isinstance(one, Tensor) and one.requires_grad]
    return [output.detach(), *torch.autograd.grad(output, wanted, upstream.to(output.dtype))]


def wide(value: Any) -> Any:
    """Return a floating-point tensor in float64, a leaf as before; anything else unchanged."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def errors(
    ours: Sequence[Tensor], eager: Any, inputs: Sequence[Any], upstream: Tensor, floors: Sequence[float] = ()
) -> list[float]:
    """Return the worst error of the output and each gradient, over its largest value or a floor."""
    theirs = results(eager, [wide(one) for one in inputs], upstream.double())
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    return [
        float((one.double() - other).abs().max()) / max(float(other.abs().max()), floor, 1e-30)
        for one, other, floor in zip(ours, theirs, floors or [0.0] * len(ours), strict=True)
    ]
