"""Let transformers' loops over experts run on fake tensors, each expert with an equal share of the tokens.

Most mixtures of experts run in one grouped operation, whose sizes do not depend on the routing. Some ask
which experts have tokens, and which tokens those are; `fake_transformers` gives them these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn


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
