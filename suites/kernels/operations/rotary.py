"""Rotary position embedding (arXiv 2104.09864), in the halves form of suites/training/models/model.py."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.kernels.subject import Operation
from suites.kernels.workload import Workload
from suites.training.models.model import rotary, rotary_tables

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Inputs:
    """Return x_BHTK normal, and cos_TK and sin_TK of the model's angles, which need no gradient."""
    size = (workload.micro_batch_size, workload.num_attention_heads, workload.seq_len, workload.head_size)
    x_BHTK = torch.randn(size, generator=generator, device=device).to(workload.torch_dtype)
    cos_TK, sin_TK = rotary_tables(workload.seq_len, workload.head_size)
    return (
        x_BHTK.requires_grad_(workload.backward),
        cos_TK.to(device, workload.torch_dtype),
        sin_TK.to(device, workload.torch_dtype),
    )


eager = rotary


def elements(workload: Workload) -> int:
    """Return the number of elements of x."""
    return workload.rows * workload.num_attention_heads * workload.head_size


def bytes_moved(workload: Workload) -> float:
    """Forward: read x and both tables, write y. Backward: read the gradient and the tables, write x's."""
    passes = 2 if workload.backward else 1
    tables = 2 * workload.seq_len * workload.head_size
    return float(passes * (2 * elements(workload) + tables) * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs: per element and pass two products and a sum; the backward pass rotates back."""
    return 3.0 * elements(workload) * (2 if workload.backward else 1)


OPERATION = Operation("rotary", inputs, eager, bytes_moved, flops)
