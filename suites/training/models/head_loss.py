"""The output layer and its loss as one call, so that techniques decide how many logits exist, and how long.

A `HeadLoss` takes the place of an output layer's forward pass, so that hooks of the layer, by which FSDP2 and
deepspeed gather its weight, still run. suites/training/declared.py has the settings.

Fused linear cross-entropy (Liger-Kernel, arXiv 2410.10989): output layer, loss and gradients in one pass.

Logits exist for a few rows at a time and are overwritten with their gradients; the gradients of the hidden
states and of the weight are complete before the backward pass starts. On CUDA it is Liger's kernel; on the
CPU and on fake tensors, the same algorithm in operations of PyTorch, with the tensors that Liger makes.

Shapes: B batch, T tokens, D hidden size, V vocabulary, N tokens of a batch, R of its rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.instruments import torch_internals
from harness.records import Unavailable


@dataclass(frozen=True, slots=True)
class LogitChange:
    """What a model does to its output layer's result: z times `scale`, or cap × tanh(z / cap)."""

    scale: float | None = None
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the changed logits, by the operations of transformers' models."""
        if self.scale is not None:
            logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


UNCHANGED = LogitChange()


def fused_linear_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, cap: float | None = None
) -> Tensor:
    """Return the mean cross-entropy of x W^T, capped, as an fp32 scalar tensor; `targets_N` are int64."""
    if x_ND.device.type == "cuda":
        return liger_linear_cross_entropy(x_ND, weight_VD, targets_N, cap)
    return _InForward.apply(x_ND, weight_VD, targets_N, cap)  # type: ignore[no-any-return,no-untyped-call]


def liger_linear_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, cap: float | None = None
) -> Tensor:
    """Return the mean loss by Liger's kernel; needs a GPU and the extra `liger`."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(x_ND, weight_VD, targets_N, softcap=cap)  # type: ignore[no-any-return]


def rows_at_once(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Return how many rows of logits exist at once: about as many elements as the hidden states.

    liger_kernel/ops/fused_linear_cross_entropy.py: N / ceil(V / D), rounded up to a power of two.
    """
    rows = -(-tokens // -(-vocab_size // hidden_size))
    return min(tokens, 1 << (rows - 1).bit_length())


class _InForward(torch.autograd.Function):
    """Compute the loss and, in the forward pass, its gradients; the backward pass scales them."""

    @staticmethod
    def forward(
        context: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, cap: float | None
    ) -> Tensor:
        gradient_ND = torch.zeros_like(x_ND)
        gradient_VD = torch.zeros_like(weight_VD) if weight_VD.requires_grad else None
        losses_N = torch.zeros(len(x_ND), dtype=torch.float32, device=x_ND.device)
        rows = rows_at_once(len(x_ND), x_ND.shape[1], len(weight_VD))
        for start in range(0, len(x_ND), rows):
            here = slice(start, start + rows)
            logits_RV = x_ND[here] @ weight_VD.t()
            slopes_RV = None if cap is None else capped(logits_RV, cap)
            losses_N[here] = to_gradients(logits_RV, targets_N[here], len(x_ND))
            if slopes_RV is not None:
                logits_RV *= slopes_RV
            gradient_ND[here] = logits_RV @ weight_VD
            if gradient_VD is not None:
                add_product(gradient_VD, logits_RV.t(), x_ND[here])
            del logits_RV
        context.save_for_backward(gradient_ND, gradient_VD)
        return losses_N.mean()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        gradient_ND, gradient_VD = context.saved_tensors
        if gradient_VD is not None:
            gradient_VD.mul_(gradient)
        return gradient_ND.mul_(gradient), gradient_VD, None, None


def capped(logits_RV: Tensor, cap: float) -> Tensor:
    """Cap logits in place, and return the slopes of that, 1 - tanh²; Liger's kernel stores none."""
    logits_RV.div_(cap).tanh_()
    slopes_RV = 1 - logits_RV * logits_RV
    logits_RV.mul_(cap)
    return slopes_RV


class _InPlaceLoss(torch.autograd.Function):
    """Compute the loss of a copy of all logits, and overwrite it with their gradients in the backward pass.

    transformers shifts logits by a token, which copies them and, in the backward pass, their gradients
    (4.49, loss/loss_utils.py, `ForCausalLMLoss`).
    """

    @staticmethod
    def forward(context: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = logits_NV.clone()
        sums_N = torch.logsumexp(logits_NV, 1)
        context.save_for_backward(logits_NV, sums_N, targets_N)
        return (sums_N - logits_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)).sum()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits_NV, sums_N, targets_N = context.saved_tensors
        index_N1 = targets_N.unsqueeze(1)
        logits_NV.sub_(sums_N.unsqueeze(1)).exp_()
        logits_NV.scatter_add_(1, index_N1, torch.full_like(index_N1, -1, dtype=logits_NV.dtype))
        return logits_NV.mul_(gradient).clone(), None


class _OfRows(torch.autograd.Function):
    """Compute the loss of logits in their own type, some rows at a time; keep them and a number per row.

    That is what Inductor's kernels keep of a cross-entropy of widened logits: these and their log-softmax
    stand in registers alone (torch 2.13, torch/_inductor; compared with them in tests).
    """

    @staticmethod
    def forward(context: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        sums_N = torch.cat([torch.logsumexp(rows.float(), 1) for rows in torch.split(logits_NV, ROWS)])
        context.save_for_backward(logits_NV, sums_N, targets_N)
        return (sums_N - logits_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)).sum()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits_NV, _, targets_N = context.saved_tensors
        gradient_NV = torch.softmax(logits_NV, 1)
        index_N1 = targets_N.unsqueeze(1)
        gradient_NV.scatter_add_(1, index_N1, torch.full_like(index_N1, -1, dtype=logits_NV.dtype))
        return gradient_NV.mul_(gradient), None


ROWS = 64
"""Of logits that are widened at once where no kernel is generated."""


def cross_entropy(logits_NV: Tensor, targets_N: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of the cross-entropies, computed in a type."""
    return F.cross_entropy(logits_NV.to(dtype), targets_N, reduction="sum")


def compiled_cross_entropy(logits_NV: Tensor, targets_N: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `cross_entropy` by generated kernels; on the CPU and on fake tensors, by what these keep."""
    if logits_NV.device.type == "cuda":
        return generated()(logits_NV, targets_N, dtype)
    return _OfRows.apply(logits_NV, targets_N)  # type: ignore[no-any-return,no-untyped-call]


@cache
def generated() -> Callable[[Tensor, Tensor, torch.dtype], Tensor]:
    """Return `cross_entropy` by torch.compile, which importing this module shall not start."""
    return torch.compile(cross_entropy, dynamic=False)


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


Chunked = Callable[["HeadLoss", Tensor, Tensor], Tensor]


class HeadLoss:
    """The mean cross-entropy in place of an output layer's logits.

    `chunked`: a key of `SCHEMES`. `narrow`: the type of logits and loss; None: logits are widened to fp32.
    `keep`: "model" keeps the logits as the layer makes them until the next forward pass has made its own,
    "fp32" keeps them widened; None keeps none. `change`: what the model does to its logits. `compiled`: the
    loss of logits is a generated kernel; see `compiled_cross_entropy`.
    """

    def __init__(
        self,
        head: nn.Module,
        chunked: str,
        chunks: int = 1,
        narrow: torch.dtype | None = None,
        keep: str | None = None,
        change: LogitChange = UNCHANGED,
        compiled: bool = False,
    ) -> None:
        self.head, self.layer, self.change = head, head.forward, change
        self.scheme, self.chunks, self.narrow, self.keep = SCHEMES[chunked], chunks, narrow, keep
        self.of_logits = compiled_cross_entropy if compiled else cross_entropy
        self._targets_BT: Tensor | None = None
        self._loss: Tensor | None = None
        self._kept: list[Tensor] = []

    def run(self, call: Callable[[], Any], targets_BT: Tensor) -> Tensor:
        """Return the loss of predicting `targets_BT` (int64) by a `call` of the model, an fp32 scalar tensor.

        Raises `Unavailable` where the model changes what its output layer returns otherwise than `change`.
        """
        self._targets_BT = targets_BT
        result: Tensor = call()
        own, self._loss, self._targets_BT = self._loss, None, None
        if own is not None and self.change != UNCHANGED and result.shape == own.shape:
            return own + 0 * result  # which the model has changed as it does logits; its hooks still run
        if own is None or not same_number(result, own):
            raise Unavailable("the model changes its logits after the output layer, which `loss` cannot do")
        return result

    def project(self, x_BTD: Tensor) -> Tensor:
        """Return logits, as the model changes them."""
        return self.change(self.layer(x_BTD))

    def __call__(self, x_BTD: Tensor) -> Tensor:
        """Return the loss in place of the output layer's logits, an fp32 scalar tensor."""
        assert self._targets_BT is not None
        self._loss = self.scheme(self, x_BTD, self._targets_BT)
        return self._loss

    def widened(self, logits_BTV: Tensor) -> Tensor:
        """Return logits in the type of the loss."""
        return logits_BTV.float() if self.narrow is None else logits_BTV.to(self.narrow)

    def entropy(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the sum of the cross-entropies, a scalar tensor in the type of the loss."""
        with torch.autocast(logits_BTV.device.type, enabled=False):
            return self.of_logits(
                logits_BTV.flatten(0, 1), targets_BT.flatten(), self.narrow or torch.float32
            )

    def hold(self, logits: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the logits, widened where `keep` asks for that, and keep them if it asks for that."""
        if self.keep is None:
            return logits
        if self.keep == "fp32":
            logits = [self.widened(one) for one in logits]
        self._kept = list(logits)
        return logits

    def let_go(self) -> None:
        """Keep no logits of the last call any longer."""
        self._kept = []

    def mean(self, sums: Sequence[Tensor], targets_BT: Tensor) -> Tensor:
        """Return the mean over all tokens as an fp32 scalar tensor."""
        return torch.stack([one.float() for one in sums]).sum() / targets_BT.numel()


def same_number(one: Tensor, other: Tensor) -> bool:
    """Return whether two scalar tensors share their memory; deepspeed's hooks return an alias."""
    keys = [torch_internals.storage_key(tensor.untyped_storage()) for tensor in (one, other)]
    return one.shape == other.shape and keys[0] == keys[1]


def chunked(all_at_once: bool, loss: HeadLoss, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute logits and reduce them in chunks; all logits exist until the last loss.

    All at once, they are widened and reduced in chunks (torchtitan, pull request 996); else they are computed
    in chunks, too (torchtune's CEWithChunkedOutputLoss).
    """
    if all_at_once:
        logits: Sequence[Tensor] = loss.hold([loss.project(x_BTD)])[0].chunk(loss.chunks, 1)
    else:
        logits = loss.hold([loss.project(one) for one in x_BTD.chunk(loss.chunks, 1)])
    parts = zip(logits, targets_BT.chunk(loss.chunks, 1), strict=True)
    return loss.mean([loss.entropy(one, targets) for one, targets in parts], targets_BT)


def recomputed_chunks(loss: HeadLoss, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute logits and loss of one chunk at a time, and compute them again in the backward pass."""

    def part(x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        return loss.entropy(loss.project(x_BTD), targets_BT)

    parts = zip(x_BTD.chunk(loss.chunks, 1), targets_BT.chunk(loss.chunks, 1), strict=True)
    sums = [checkpoint(part, x, targets, use_reentrant=False) for x, targets in parts]
    return loss.mean(sums, targets_BT)


def fused(loss: HeadLoss, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute the loss and its gradients in the forward pass."""
    if loss.change.scale is not None:  # Liger's default for Granite: fused_linear_cross_entropy=False
        return in_place(loss, x_BTD, targets_BT)
    if not isinstance(loss.head, nn.Linear) or loss.head.bias is not None:
        raise Unavailable("loss: fused needs an output layer that is a plain nn.Linear without bias")
    cap = loss.change.cap
    return fused_linear_cross_entropy(x_BTD.flatten(0, 1), loss.head.weight, targets_BT.flatten(), cap)


def in_place(loss: HeadLoss, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute all logits at once, whose gradients take their place, as Unsloth's kernel does."""
    logits_NV = loss.widened(loss.project(x_BTD)).flatten(0, 1)
    total: Tensor = _InPlaceLoss.apply(logits_NV, targets_BT.flatten())  # type: ignore[no-untyped-call]
    return loss.mean([total], targets_BT)


SCHEMES: dict[str, Chunked] = {
    "in_place": in_place,
    "loss": partial(chunked, True),
    "output": partial(chunked, False),
    "recompute": recomputed_chunks,
    "fused": fused,
}
"""How the output layer and its loss are computed, by name."""
