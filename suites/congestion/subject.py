"""The congestion suite's types: an incast, and how the senders of a variant are controlled.

Shape letters: N senders, K time steps. Bytes and seconds throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from suites.congestion.workload import Workload

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Control(Protocol):
    """How the senders of a variant limit themselves, apart from pauses; one object per simulation."""

    notifications: int  # congestion notifications to all senders together

    def may_send(self) -> Floats:
        """Return the bytes (N,) that each sender would put on its wire in the next step without pauses."""

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Observe a step: bytes sent, bytes that left the switch, bytes that stay in it."""


class LineRate:
    """Senders at line rate."""

    notifications = 0

    def __init__(self, workload: Workload, seed: int) -> None:
        self._line_N = np.full(workload.senders, workload.rate_B_per_s * workload.dt_s)

    def may_send(self) -> Floats:
        """Return what the line takes."""
        return self._line_N

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Ignore the step."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An incast under a variant's control."""

    workload: Workload
    seed: int
    control: Callable[[Workload, int], Control] = LineRate
    name: str = "PFC only"


class Delay:
    """Return each array (N,) a number of steps later; zeros before that."""

    def __init__(self, steps: int, width: int) -> None:
        """Raise ValueError for a negative number of steps."""
        if steps < 0:
            raise ValueError(f"a delay of {steps} steps: expected at least 0")
        self._ring = np.zeros((steps + 1, width))
        self._at = 0

    def __call__(self, now_N: Floats | Bools) -> Floats:
        """Return what was given that many steps ago; the array is valid until the next call."""
        self._ring[self._at] = now_N
        self._at = (self._at + 1) % len(self._ring)
        oldest: Floats = self._ring[self._at]
        return oldest
