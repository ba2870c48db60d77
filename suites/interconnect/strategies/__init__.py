"""How ranks share one training step: data in parallel, with parameters whole or in shards."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class Strategy(Protocol):
    """A model wrapped for several ranks, with its optimizer's part."""

    model: nn.Module

    def backward(self, tokens_BT: Tensor, targets_BT: Tensor, share: float, last: bool) -> Tensor:
        """One batch's loss; its gradients times `share`, reduced over ranks with the `last` of an update,
        or by deepspeed with every one."""

    def update(self) -> None:
        """The optimizer's step, and gradients let go."""

    def parameters(self) -> dict[str, Tensor]:
        """Whole parameters by name, for a check."""

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by name, between the last backward pass of an update and the update itself."""
