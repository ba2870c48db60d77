"""What is injected into a rank's own steps, with the injector's own clock: the sum of what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import nn

from suites.training.trainer import Trainer


class Sleeper:
    """Sleeps while it is `active`, and sums by its own clock how long: a sleep takes longer than asked."""

    def __init__(self, seconds: float, every: int = 1) -> None:
        self._seconds, self._every = seconds, every
        self._calls = 0
        self.active = False
        self.slept_s = 0.0

    def __call__(self) -> None:
        """Sleep, if this call's turn has come."""
        if not self.active:
            return
        self._calls += 1
        if self._calls % self._every == 0:
            begin_s = time.perf_counter()
            time.sleep(self._seconds)
            self.slept_s += time.perf_counter() - begin_s


def before_launches(trainer: Trainer, sleeper: Sleeper) -> Callable[[], None]:
    """Call the sleeper before each launch of a linear layer in the forward pass; return what ends that."""

    def hook(module: nn.Module, inputs: Any) -> None:
        sleeper()

    handles = [
        one.register_forward_pre_hook(hook) for one in trainer.plain.modules() if isinstance(one, nn.Linear)
    ]

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end
