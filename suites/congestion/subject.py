"""The congestion suite's types: an incast, and how the senders of a variant are controlled.

Shape letters: N senders, K time steps. Bytes and seconds throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An incast of N senders into one receiver through one switch.

    Each sender sends `messages` of `message_B`, one after the other. Every NIC and the receiver's port have
    the same rate.
    """

    senders: PositiveInt  # into one receiver's port
    message_B: Annotated[float, Bounds(at_least=1)]  # bytes of each message
    messages: PositiveInt = 1  # per sender, one after the other
    rate_B_per_s: Annotated[float, Bounds(at_least=1)]  # of every NIC and of the receiver's port
    # Unloaded, from a NIC to another and back; Meta's value.
    rtt_s: Annotated[float, Bounds(at_least=1e-9)] = 22e-6
    # One way from a sender's NIC to the switch; a pause takes as long back, and acts at once. Chosen here.
    hop_s: Annotated[float, Bounds(at_least=1e-9, not_above="rtt_s * 0.5")] = 1e-6
    buffer_B: Annotated[float, Bounds(at_least=1)] = 30e6  # buffer of the switch, shared by all its ports
    # A port with more bytes asks its sender to pause, and resumes below `xon_B`.
    xoff_B: Annotated[float, Bounds(at_least=1, not_above="buffer_B")]
    xon_B: Annotated[float, Bounds(at_least=0, not_above="xoff_B")]
    # Room of a port for what still arrives after it asked.
    headroom_B: Annotated[float, Bounds(at_least=0, not_above="buffer_B")]
    # Senders start within this time, by the seed; chosen here.
    jitter_s: Annotated[float, Bounds(at_least=0)] = 22e-6
    # Of a time step. At most a quarter of hop_s, because the simulation is repeated with twice the step.
    dt_s: Annotated[float, Bounds(at_least=1e-10, not_above="hop_s * 0.25")] = 1e-7
    source: str = ""

    @property
    def sender_B(self) -> float:
        """Return the bytes that one sender sends in total."""
        return self.messages * self.message_B

    @property
    def bound_s(self) -> float:
        """Return the least completion time: every byte through one port, plus a round trip."""
        return self.senders * self.sender_B / self.rate_B_per_s + self.rtt_s

    def steps(self, time_s: float) -> int:
        """Return the number of steps nearest to a time."""
        return round(time_s / self.dt_s)

    def refuse_lossy(self) -> None:
        """Raise Unavailable where the buffer cannot take what all ports may fill."""
        need_B = self.senders * (self.xoff_B + self.headroom_B)
        if need_B > self.buffer_B:
            raise Unavailable(
                f"{self.senders} ports with threshold and headroom need {need_B:,.0f} B of a buffer of "
                f"{self.buffer_B:,.0f} B: it could not be lossless"
            )


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
