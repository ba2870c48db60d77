"""What is injected into a rank's own steps, with the injector's own clock: the sum of what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from suites.training.trainer import Trainer


class Sleeper:
    """Sleeps, and sums by its own clock how long that took; a sleep takes longer than it is asked to."""

    def __init__(self, seconds: float, every: int = 1) -> None:
        self._seconds, self._every = seconds, every
        self._calls = 0
        self.slept_s = 0.0

    def __call__(self) -> None:
        """Sleep, if this call's turn has come."""
        self._calls += 1
        if self._seconds and self._calls % self._every == 0:
            begin_s = time.perf_counter()
            time.sleep(self._seconds)
            self.slept_s += time.perf_counter() - begin_s


@contextmanager
def before_launches(trainer: Trainer, sleeper: Sleeper) -> Iterator[None]:
    """Call the sleeper before each launch of a linear layer in the forward pass."""

    def hook(module: nn.Module, inputs: Any) -> None:
        sleeper()

    handles = [
        one.register_forward_pre_hook(hook) for one in trainer.plain.modules() if isinstance(one, nn.Linear)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
