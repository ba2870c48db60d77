"""AllGather + MoE: the experts' products for all ranks' tokens, with this rank's columns of every expert.

x (M / ranks, K) per rank, w (experts, K, N), y (M, top_k, N). Every token's experts are known to all ranks,
as in Triton-distributed's test, whose PyTorch baseline is the loop over experts with masks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.ag_gemm import TimedAllGatherGemm
from suites.overlap.operations.common import checked, worst_error
from suites.overlap.subject import Subject


class AllGatherMoe(TimedAllGatherGemm):
    """The operation on this rank."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        super().__init__(subject, link)
        workload = self.workload
        self.w = self.values("w", self.rank, workload.experts, workload.k, workload.n)
        self.experts = chosen_experts(self, workload.m)
        self.y = torch.empty(workload.m, workload.top_k, workload.n)

    def multiply(self, rows: Tensor, out: Tensor, first: int) -> None:
        """Write the products of these rows with the experts that they chose."""
        experts = self.experts[first : first + len(rows)]
        by = expert_loop if self.subject.experts_by == "loop" else grouped
        by(rows, experts, self.w, out)

    def error(self) -> float:
        """Compare with products in float64."""
        which = checked(self.workload.m)
        x = torch.cat([self.values("x", one, *self.x.shape) for one in range(self.ranks)])[which].double()
        expected = torch.stack(
            [
                torch.stack([row @ self.w[expert].double() for expert in chosen])
                for row, chosen in zip(x, self.experts[which].tolist(), strict=True)
            ]
        )
        return worst_error(self.y[which], expected)


def chosen_experts(part: TimedAllGatherGemm, tokens: int) -> Tensor:
    """Return each token's experts (tokens, top_k), all different, the same on every rank."""
    scores = part.values("experts", 0, tokens, part.workload.experts)
    return scores.topk(part.workload.top_k).indices


def expert_loop(rows: Tensor, experts: Tensor, w: Tensor, out: Tensor) -> None:
    """Multiply expert by expert, with a mask over all tokens: what a first version in PyTorch does."""
    repeated = rows.repeat_interleave(experts.shape[1], 0)
    flat, result = experts.reshape(-1), out.view(-1, out.shape[-1])
    for expert in range(len(w)):
        mask = flat == expert
        if mask.any():
            result[mask] = repeated[mask] @ w[expert]


def grouped(rows: Tensor, experts: Tensor, w: Tensor, out: Tensor) -> None:
    """Sort the tokens by expert, and multiply all groups by one call."""
    flat = experts.reshape(-1)
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=len(w)).cumsum(0).to(torch.int32)
    products = F.grouped_mm(rows[order // experts.shape[1]], w, offs=ends)
    out.view(-1, out.shape[-1])[order] = products
