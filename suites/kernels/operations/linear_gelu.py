"""A linear layer and its activation, gelu(x W^T + bias), tanh form: the up-projection of GPT's MLP.

Suffix in addition to those of `subject`: F features of the layer, which are its intermediate size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.kernels.operations import gelu_bias
from suites.kernels.subject import IN_PRODUCT, Operation
from suites.kernels.workload import Workload

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Inputs:
    """Return x_ND normal, weight_FD of deviation 1/sqrt(D), so that products are about 1, and bias_F."""
    rows, columns, features = workload.rows, workload.hidden_size, workload.intermediate_size
    x_ND = torch.randn(rows, columns, generator=generator, device=device)
    weight_FD = torch.randn(features, columns, generator=generator, device=device) / columns**0.5
    bias_F = torch.randn(features, generator=generator, device=device)
    dtype, needed = workload.torch_dtype, workload.backward
    x_ND, weight_FD, bias_F = (one.to(dtype).requires_grad_(needed) for one in (x_ND, weight_FD, bias_F))
    return x_ND, weight_FD, bias_F


def eager(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """Map (N, D), (F, D) and (F) to (N, F): a kernel for the product with its bias, another for the rest."""
    return F.gelu(F.linear(x_ND, weight_FD, bias_F), approximate="tanh")


def bytes_moved(workload: Workload) -> float:
    """Return the least bytes. Forward: read x, weight and bias, write y. Backward: read them and the
    gradient, write three gradients. The product itself never moves: the backward pass has it again."""
    y = workload.rows * workload.intermediate_size
    passes = 1 + (2 if workload.backward else 0)
    elements = passes * _inputs(workload) + y * (2 if workload.backward else 1)
    return float(elements * workload.element_B)


def flops(workload: Workload) -> float:
    """Return FLOPs: 2 N D F forward and twice that backward, and those of `gelu_bias` on (N, F).

    Having the product again is not counted.
    """
    product = 2.0 * workload.rows * workload.hidden_size * workload.intermediate_size
    activation = gelu_bias.flops_per_element(workload) * workload.rows * workload.intermediate_size
    return product * (3 if workload.backward else 1) + activation


def forward_traffic(workload: Workload, activation: str) -> float:
    """Return the bytes that the forward pass's kernels read and write, each of them each tensor once.

    `activation`: the kernel that computes it, as in `Subject.activation`. All read x, weight and bias, and
    write y. In a separate kernel: the product is written and read. In the product's: it is written where a
    backward pass will read it. The backward pass is alike in both cases.
    """
    moved = (2 if workload.backward else 1) if activation == IN_PRODUCT else 3
    elements = _inputs(workload) + moved * workload.rows * workload.intermediate_size
    return float(elements * workload.element_B)


def _inputs(workload: Workload) -> int:
    """Return the elements of x, the weight and the bias."""
    rows, columns, features = workload.rows, workload.hidden_size, workload.intermediate_size
    return rows * columns + features * columns + features


OPERATION = Operation("linear_gelu", inputs, eager, bytes_moved, flops)
