"""Shapes at which hand-written kernels fail: odd, one row, not contiguous, large values. All small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from suites.kernels.bound_call import make_inputs, mapped
from suites.kernels.subject import Inputs, Subject
from suites.kernels.workload import Workload

Case = tuple[str, Workload, Inputs]

LARGE = {"attention": 4.0, "linear_cross_entropy": 4.0, "linear_gelu": 4.0}
"""Factor of large inputs to functions that take exponentials of products: those grow with its square."""

LARGE_OTHERWISE = 100.0

ODD = {
    "seq_len": 37,
    "hidden_size": 131,
    "num_attention_heads": 3,
    "intermediate_size": 77,
    "vocab_size": 77,
}
"""Sizes that no block divides."""


def small(workload: Workload, **changes: Any) -> Workload:
    """Return the workload at a size that is fast even interpreted, with its head size, type and passes."""
    size: dict[str, Any] = {
        "micro_batch_size": 2,
        "seq_len": 9,
        "hidden_size": 40,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 50,
        "vocab_size": 50,
        "tensors": 3,
    }
    return replace(workload, **{**size, **changes})


def edge_cases(subject: Subject) -> Iterator[Case]:
    """Yield each case with its name in words, its workload and its inputs."""
    workload = subject.workload
    shapes = {
        "a small shape": small(workload),
        "one row": small(workload, micro_batch_size=1, seq_len=1),
        "odd sizes": small(workload, micro_batch_size=1, **ODD),
        "three columns": small(workload, hidden_size=3, num_attention_heads=1, num_key_value_heads=1),
    }
    for name, changed in shapes.items():
        yield name, changed, inputs_of(subject, changed)
    plain = small(workload)
    yield "not contiguous", plain, mapped(strided, inputs_of(subject, plain))
    factor = LARGE.get(workload.operation, LARGE_OTHERWISE)
    large = mapped(lambda one: scaled(one, factor), inputs_of(subject, plain))
    if workload.operation != "adamw":
        yield "large magnitudes", plain, large


def inputs_of(subject: Subject, workload: Workload) -> Inputs:
    """Return the operation's inputs at another shape."""
    return make_inputs(subject.operation, workload, subject.seed, subject.device)


def strided(tensor: Tensor) -> Tensor:
    """Return the same values with a stride of two in the last dimension; a leaf stays a leaf."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return tensor
    wide = torch.empty(*tensor.shape, 2, dtype=tensor.dtype, device=tensor.device)
    apart = wide[..., 0]
    return apart.copy_(tensor.detach()).detach().requires_grad_(tensor.requires_grad)


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """Return the tensor times `factor` if it has at least two dimensions; a leaf stays a leaf."""
    if tensor.dim() < 2 or not tensor.is_floating_point() or not tensor.requires_grad:
        return tensor
    return (tensor.detach() * factor).requires_grad_(True)
