"""Compare an engine's outputs and gradients with float64's.

An error is |ours - float64| over the largest |float64| of the same tensor; of parameters after an update,
over the largest change. What a rounding of the largest gradient, or of the largest parameter, explains is no
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.records import WrongResult
from suites.portability.capture.graph import Capture

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""fp32: sums of some thousands of products at 2^-24 each; TF32 and bf16 are 10 and 80 times as far off. bf16:
several roundings of 2^-9 each, one after another through a model's layers."""

ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}
"""Half the distance of neighbouring numbers next to 1."""

ROUNDINGS_OF_UPDATE = 4
"""Roundings of a parameter's own size in AdamW: weight decay, its difference, and their order."""


class LargestError(NamedTuple):
    """The largest error of all tensors, and the name of the tensor that has it."""

    largest: float
    tensor: str


def compare(
    capture: Capture, before: dict[str, Tensor], expected: Sequence[Tensor], ours: Sequence[Tensor]
) -> LargestError:
    """Return the largest error; raises `WrongResult`, one line, for another number, type, shape or value.

    `before`: parameters before the update by the name of their output.
    """
    names, dtypes = capture.output_names, capture.output_dtypes
    if len(ours) != len(expected):
        raise WrongResult(f"{len(ours)} outputs, not {len(expected)}")
    precision = floating_type(capture)
    tolerance = TOLERANCES[precision]
    worst = LargestError(0.0, "")
    for name, dtype, one, other in zip(names, dtypes, ours, expected, strict=True):
        if one.dtype != dtype:
            raise WrongResult(
                f"{name} is {_plain(one.dtype)}, not {_plain(dtype)}: computed in another precision"
            )
        if one.shape != other.shape:
            raise WrongResult(f"{name} has shape {tuple(one.shape)}, not {tuple(other.shape)}")
        change = before.get(name)
        scale = _scale(name, other, change, names, expected, ROUNDING[precision] / tolerance)
        error = (
            float((one.double() - other).abs().nan_to_num(nan=torch.inf).max()) / scale
            if one.numel()
            else 0.0
        )
        if not error <= tolerance:
            of = "value" if change is None else "change"
            raise WrongResult(
                f"{name} is off by {error:.1e} of its largest {of}, allowed for {_plain(precision)}: "
                f"{tolerance:.0e}"
            )
        worst = max(worst, LargestError(error, name))
    return worst


def floating_type(capture: Capture) -> torch.dtype:
    """Return the precision of the graph: that of its first floating-point input."""
    return next(one.dtype for one in capture.inputs if one.is_floating_point())


def _scale(
    name: str,
    expected: Tensor,
    before: Tensor | None,
    names: Sequence[str],
    every: Sequence[Tensor],
    rounding: float,
) -> float:
    """Return what the largest difference of a tensor is divided by."""
    if before is not None:
        change = float((expected - before.double()).abs().max())
        return max(change, ROUNDINGS_OF_UPDATE * rounding * float(before.abs().max())) or 1.0
    kind = name.split(" ")[0]
    alike = [
        float(one.abs().max()) for other, one in zip(names, every, strict=True) if other.split(" ")[0] == kind
    ]
    return max(float(expected.abs().max()), rounding * max(alike)) or 1.0


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
