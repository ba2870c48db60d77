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
from torch import Tensor


def shares(total: int, parts: int) -> list[int]:
    """Return `total` in `parts` whole numbers that differ by at most 1."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def looped(ask: Callable[..., Any], experts: Any, *arguments: Any, **named: Any) -> Any:
    """Return the output of a loop over experts in which each has its share of the (token, choice) pairs."""
    with _assumed(_EvenLoop()):
        return ask(experts, *arguments, **named)


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


class _EvenLoop:
    """What a loop over experts asks for, in the order in which it asks."""

    def __init__(self) -> None:
        self.experts, self.asked = 1, 0

    def nonzero(self, tensor: Tensor) -> list[_Expert]:
        """Return the number of each expert."""
        self.experts, self.asked = tensor.numel(), 0
        return [_Expert([expert]) for expert in range(self.experts)]

    def where(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Return indices of as many entries of a mask as the next expert has."""
        count = shares(mask.numel(), self.experts)[self.asked]
        self.asked += 1
        return tuple(torch.zeros(count, dtype=torch.int64, device=mask.device) for _ in mask.shape)


@contextmanager
def _assumed(loop: _EvenLoop) -> Iterator[None]:
    original = torch.where

    def where(*arguments: Any, **named: Any) -> Any:
        return loop.where(*arguments) if len(arguments) == 1 else original(*arguments, **named)

    def nonzero(tensor: Tensor, **_: Any) -> list[_Expert]:
        return loop.nonzero(tensor)

    with patch.object(Tensor, "nonzero", nonzero), patch.object(torch, "where", where):
        yield
