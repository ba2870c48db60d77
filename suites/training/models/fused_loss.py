"""Fused linear cross-entropy (Liger-Kernel, arXiv 2410.10989): output layer, loss and gradients in one pass.

Logits exist for a few rows at a time and are overwritten with their gradients; the gradients of the hidden
states and of the weight are complete before the backward pass starts. On CUDA it is Liger's kernel; on the
CPU and on fake tensors, the same algorithm in operations of PyTorch, with the tensors that Liger makes.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def fused_linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the mean cross-entropy of x W^T as an fp32 scalar tensor; `targets_N` are int64."""
    if x_ND.device.type == "cuda":
        return liger_linear_cross_entropy(x_ND, weight_VD, targets_N)
    return InForward.apply(x_ND, weight_VD, targets_N)  # type: ignore[no-any-return,no-untyped-call]


def liger_linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the mean loss by Liger's kernel; needs a GPU and the extra `liger`."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(x_ND, weight_VD, targets_N)  # type: ignore[no-any-return]


def rows_at_once(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Return how many rows of logits exist at once: about as many elements as the hidden states.

    liger_kernel/ops/fused_linear_cross_entropy.py: N / ceil(V / D), rounded up to a power of two.
    """
    rows = -(-tokens // -(-vocab_size // hidden_size))
    return min(tokens, 1 << (rows - 1).bit_length())


class InForward(torch.autograd.Function):
    """Compute the loss and, in the forward pass, its gradients; the backward pass scales them."""

    @staticmethod
    def forward(context: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        """Return the mean loss; keep the gradients of the hidden states and of the weight."""
        gradient_ND = torch.zeros_like(x_ND)
        gradient_VD = torch.zeros_like(weight_VD) if weight_VD.requires_grad else None
        losses_N = torch.zeros(len(x_ND), dtype=torch.float32, device=x_ND.device)
        rows = rows_at_once(len(x_ND), x_ND.shape[1], len(weight_VD))
        for start in range(0, len(x_ND), rows):
            here = slice(start, start + rows)
            logits_RV = x_ND[here] @ weight_VD.t()
            losses_N[here] = to_gradients(logits_RV, targets_N[here], len(x_ND))
            gradient_ND[here] = logits_RV @ weight_VD
            if gradient_VD is not None:
                add_product(gradient_VD, logits_RV.t(), x_ND[here])
            del logits_RV
        context.save_for_backward(gradient_ND, gradient_VD)
        return losses_N.mean()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Return the gradients, scaled in place."""
        gradient_ND, gradient_VD = context.saved_tensors
        if gradient_VD is not None:
            gradient_VD.mul_(gradient)
        return gradient_ND.mul_(gradient), gradient_VD, None


def add_product(sum_VD: Tensor, a_VR: Tensor, b_RD: Tensor) -> None:
    """Add a product to `sum_VD`, without a tensor of its own where all types are one, as Liger does."""
    if sum_VD.dtype == a_VR.dtype == b_RD.dtype:
        torch.addmm(sum_VD, a_VR, b_RD, out=sum_VD)
    else:
        sum_VD += a_VR @ b_RD


def to_gradients(logits_RV: Tensor, targets_R: Tensor, tokens: int) -> Tensor:
    """Overwrite logits with the gradients of the mean loss over `tokens`; return the rows' losses, fp32 (R).

    The gradient of log(sum(exp(l))) - l_target is the softmax, less one at the target.
    """
    index_R1 = targets_R.unsqueeze(1)
    logits_RV.sub_(logits_RV.amax(1, keepdim=True))
    chosen_R1 = logits_RV.gather(1, index_R1).float()
    sums_R1 = logits_RV.exp_().sum(1, keepdim=True, dtype=torch.float32)
    logits_RV.div_(sums_R1)
    logits_RV.scatter_add_(1, index_R1, torch.full_like(index_R1, -1, dtype=logits_RV.dtype))
    logits_RV.div_(tokens)
    return (sums_R1.log() - chosen_R1).squeeze(1)
