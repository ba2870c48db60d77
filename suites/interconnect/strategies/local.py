"""Each rank trains by itself; somebody else sees to it that they meet."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from suites.interconnect.subject import Plan


class Wrapped:
    """The model as it is, AdamW over its parameters."""

    def __init__(self, model: nn.Module, plan: Plan, learning_rate: float) -> None:
        self.plain = model
        self.model: Any = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

    def reducing(self, last: bool) -> AbstractContextManager[None]:
        """What a batch is done in, for its gradients to be reduced with the `last` of an update: nothing."""
        return nullcontext()

    def backward(self, tokens_BT: Tensor, targets_BT: Tensor, share: float, last: bool) -> Tensor:
        """See `Strategy`."""
        with self.reducing(last):
            loss: Tensor = self.model(tokens_BT, targets_BT)
            (loss * share).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """See `Strategy`."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {name: one.detach() for name, one in self.plain.named_parameters()}

    def gradients(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {name: one.grad for name, one in self.plain.named_parameters() if one.grad is not None}
