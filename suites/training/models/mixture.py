"""A mixture of experts in place of a transformer's feed-forward layer, as in Mixtral (arXiv 2401.04088).

A router chooses `num_experts_per_tok` of `num_experts` MLPs for each token, by the largest of its logits'
softmax, and weights their results by these probabilities, scaled to sum to 1. A shared expert, where there is
one, takes every token. There is no loss that balances the experts, no capacity, and no token is dropped.

Shape suffixes, besides those of `model.py`: N tokens of a batch, M of their choices (tokens x experts per
token), E experts, F width of an expert.

Most of transformers' mixtures run in one grouped operation, whose sizes do not depend on the routing. Some
ask which experts have which tokens; on fake tensors, `fake_transformers` lets each have an equal share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from harness.instruments import torch_internals
from suites.training.quantization import local


def shares(total: int, parts: int) -> list[int]:
    """Return `total` in `parts` whole numbers that differ by at most 1."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def looped(ask: Callable[..., Any], experts: Any, *arguments: Any, **named: Any) -> Any:
    """Return the output of a loop over experts in which each has its share of the (token, choice) pairs."""
    with _assumed(_Loop()):
        return ask(experts, *arguments, **named)


def looped_over_a_mask(ask: Callable[..., Any], experts: Any, *arguments: Any, **named: Any) -> Any:
    """Return the output of NLLB-MoE's loop, which takes the entries of a mask for numbers of experts.

    So in transformers 5: the first expert has every pair of a token and an expert that is not its own, the
    second one every other pair, and all further ones have none, however the router decides.
    """
    with _assumed(_MaskLoop()):
        return ask(experts, *arguments, **named)


def without_casts(ask: Callable[..., Any], router: Any, *arguments: Any, **named: Any) -> Any:
    """Return the output of a router that casts its layer at each call, to the type that it has.

    A cast gives a layer new parameters, which fake ones cannot be exchanged for.
    """
    original = nn.Module.to

    def to(module: nn.Module, dtype: torch.dtype) -> nn.Module:
        is_cast = all(one.dtype == dtype for one in module.parameters())
        return module if is_cast else original(module, dtype)

    with patch.object(nn.Module, "to", to):
        return ask(router, *arguments, **named)


def split(ask: Callable[..., Any], gating: Any, hidden_states: Tensor) -> Any:
    """Return the output of a gating that assigns each expert its share of the tokens."""
    sizes = shares(hidden_states.size(0) * gating.top_k, gating.num_experts)
    with patch.object(type(hidden_states), "tolist", lambda tensor: sizes):
        return ask(gating, hidden_states)


class _Expert(list[int]):
    """The number of an expert, as a tensor of one entry gives it: `mask[expert]`, `expert[0]`, `item()`."""

    def item(self) -> int:
        """Return the number."""
        return self[0]


class _Loop:
    """What a loop over experts asks for, in the order in which it asks; each has an equal share."""

    def __init__(self) -> None:
        self.experts, self.asked = 1, 0

    def nonzero(self, tensor: Tensor) -> list[_Expert]:
        """Return the number of each expert."""
        self.experts, self.asked = tensor.numel(), 0
        return [_Expert([expert]) for expert in range(self.experts)]

    def count(self, mask: Tensor) -> int:
        """Return how many entries of its mask, (choices, tokens), the next expert has."""
        return shares(mask.numel(), self.experts)[self.asked]

    def where(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Return indices of as many entries of a mask as the next expert has."""
        count = self.count(mask)
        self.asked += 1
        return tuple(torch.zeros(count, dtype=torch.int64, device=mask.device) for _ in mask.shape)


class _MaskLoop(_Loop):
    """See `looped_over_a_mask`: two experts, whose masks are (experts, tokens)."""

    def nonzero(self, tensor: Tensor) -> list[_Expert]:
        """Return the first two, or the only one."""
        return super().nonzero(tensor)[:2]

    def count(self, mask: Tensor) -> int:
        """Return the pairs that are not chosen, then those that are."""
        tokens = mask.shape[-1]
        return (mask.numel() - tokens, tokens)[self.asked]


@contextmanager
def _assumed(loop: _Loop) -> Iterator[None]:
    original = torch.where

    def where(*arguments: Any, **named: Any) -> Any:
        return loop.where(*arguments) if len(arguments) == 1 else original(*arguments, **named)

    def nonzero(tensor: Tensor, **_: Any) -> list[_Expert]:
        return loop.nonzero(tensor)

    with patch.object(Tensor, "nonzero", nonzero), patch.object(torch, "where", where):
        yield


Compute = Callable[[Tensor, Sequence[int]], Tensor]
"""Maps rows in the order of the experts, and how many each has, to results."""

ExpertExchange = Callable[[Compute, Tensor, Tensor], Tensor]
"""Runs `Compute` where the experts are, on rows (M, D) and the number of rows of each expert (E)."""


class MixtureMLP(nn.Module):
    """A router and its experts; `shared`: an MLP that takes every token, or None."""

    def __init__(
        self, hidden_size: int, width: int, experts: int, per_token: int, shared: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.per_token, self.count = per_token, experts
        self.router = nn.Linear(hidden_size, experts, bias=False)
        self.experts = Experts(hidden_size, width, experts)
        self.shared = shared

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x_ND = x_BTD.flatten(0, -2)
        weights_NK, chosen_NK = self.choose(F.softmax(self.router(x_ND).float(), dim=-1))
        chosen_M = chosen_NK.flatten()
        order_M = chosen_M.argsort(stable=True)
        tokens_M = order_M // self.per_token
        counts_E = torch.zeros(self.count, dtype=torch.int64, device=x_ND.device)
        counts_E.scatter_add_(0, chosen_M, torch.ones_like(chosen_M))
        results_MD = self.experts(x_ND.index_select(0, tokens_M), counts_E)
        weights_M1 = weights_NK.flatten().index_select(0, order_M).unsqueeze(1)
        weighted_MD = (results_MD.float() * weights_M1).to(results_MD.dtype)  # in fp32, as torchtitan
        places_MD = tokens_M.unsqueeze(1).expand_as(weighted_MD)  # index_add would keep what it adds
        mixed_ND = torch.zeros_like(x_ND, dtype=weighted_MD.dtype).scatter_add(0, places_MD, weighted_MD)
        if self.shared is not None:
            mixed_ND = mixed_ND + self.shared(x_ND)
        return mixed_ND.view_as(x_BTD)

    def choose(self, probabilities_NE: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's experts with their weights, which sum to 1."""
        weights_NK, chosen_NK = probabilities_NE.topk(self.per_token)
        return weights_NK / weights_NK.sum(dim=-1, keepdim=True), chosen_NK


class Experts(nn.Module):
    """SwiGLU MLPs with stacked weights: `gate` and `up` (E, F, D), `down` (E, D, F).

    `exchange` runs them where ranks share them, see `techniques/expert_parallel.py`; gradients of
    weights are multiplied by `gradient_scale`.
    """

    def __init__(self, hidden_size: int, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, width, hidden_size))
        self.up = nn.Parameter(torch.empty(experts, width, hidden_size))
        self.down = nn.Parameter(torch.empty(experts, hidden_size, width))
        self.exchange: ExpertExchange | None = None
        self.gradient_scale = 1.0

    def forward(self, x_MD: Tensor, counts_E: Tensor) -> Tensor:
        """Map rows in the order of the experts, and how many each has, to results (M, D)."""
        if self.exchange is not None:
            return self.exchange(self.compute, x_MD, counts_E)
        return self.compute(x_MD, numbers(counts_E, len(x_MD)))

    def compute(self, x_MD: Tensor, counts: Sequence[int]) -> Tensor:
        """Run the experts that this rank has."""
        inner_MF = F.silu(self.product(x_MD, self.gate, counts)) * self.product(x_MD, self.up, counts)
        return self.product(inner_MF, self.down, counts)

    def product(self, x_MD: Tensor, weight_EFD: Tensor, counts: Sequence[int]) -> Tensor:
        """Multiply each expert's rows by its matrix, in autocast's type where that is on."""
        weight_EFD = local(weight_EFD)
        device = x_MD.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            x_MD, weight_EFD = x_MD.to(dtype), weight_EFD.to(dtype)
        return GroupedProduct.apply(x_MD, weight_EFD, counts, self.gradient_scale)  # type: ignore[no-any-return,no-untyped-call]


class GroupedProduct(torch.autograd.Function):
    """Multiply each group of rows by a matrix of its own, into one result.

    It allocates what torch's grouped product allocates, its result and in the backward pass the gradients;
    that one takes no fp32 on fake tensors, and rows of multiples of 16 bytes alone. On fake tensors the
    products of the single experts, which allocate nothing, are left out: a dry run is several times faster.
    """

    @staticmethod
    def forward(
        context: Any, x_MD: Tensor, weight_EFD: Tensor, counts: Sequence[int], scale: float
    ) -> Tensor:
        """Return (M, F)."""
        context.save_for_backward(x_MD, weight_EFD)
        context.counts, context.scale = counts, scale
        result_MF = x_MD.new_empty(len(x_MD), weight_EFD.shape[1])
        for expert, rows in enumerate(computed(counts)):
            torch.mm(x_MD[rows], weight_EFD[expert].T, out=result_MF[rows])
        return result_MF

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of rows and weights."""
        (gradient_MF,) = gradients
        x_MD, weight_EFD = context.saved_tensors
        of_x_MD, of_weight_EFD = torch.empty_like(x_MD), torch.empty_like(weight_EFD)
        for expert, rows in enumerate(computed(context.counts)):
            torch.mm(gradient_MF[rows], weight_EFD[expert], out=of_x_MD[rows])
            torch.mm(gradient_MF[rows].T, x_MD[rows], out=of_weight_EFD[expert])
        if context.scale != 1.0:
            of_weight_EFD.mul_(context.scale)
        return of_x_MD, of_weight_EFD, None, None


def computed(counts: Sequence[int]) -> list[slice]:
    """Return the rows of each group whose product is computed: none on fake tensors."""
    if torch_internals.active_fake_mode() is not None:
        return []
    return [slice(start, end) for start, end in pairwise(accumulate(counts, initial=0))]


def numbers(counts_E: Tensor, total: int) -> list[int]:
    """Return how many of `total` rows each expert has: equal shares where the values are not known."""
    if values_are_known():
        return counts_E.tolist()
    return shares(total, len(counts_E))


def values_are_known() -> bool:
    """Return False on fake tensors, and on the rank of a fake process group, which receives no values."""
    if torch_internals.active_fake_mode() is not None:
        return False
    return not (dist.is_initialized() and dist.get_backend() == "fake")
