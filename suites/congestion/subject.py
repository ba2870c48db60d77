"""What the congestion suite hands around: an incast, and how one variant's senders hold back.

Letters of shapes: N senders, K steps of time. Bytes and seconds throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.records import Unavailable

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Workload:
    """N senders, one receiver, one switch; the fields of `conf/suite/congestion.yaml`.

    Each sender sends `messages` of `message_B`, one after the other. Every NIC and the receiver's port have
    the same rate. Raises ValueError where the fields do not make a network.
    """

    senders: int
    message_B: float
    messages: int
    rate_B_per_s: float
    rtt_s: float  # unloaded, from a NIC to another and back
    hop_s: float  # one way from a sender's NIC to the switch; a pause takes as long back, and acts at once
    buffer_B: float  # of the switch, shared by its ports
    xoff_B: float  # a port that holds more asks its sender to pause
    xon_B: float  # and at less to go on
    headroom_B: float  # of a port, for what still comes after it asked
    jitter_s: float  # senders begin within so long, by the seed
    dt_s: float
    source: str = ""

    def __post_init__(self) -> None:
        positive = ("senders", "message_B", "messages", "rate_B_per_s", "rtt_s", "hop_s", "xoff_B", "dt_s")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected more than 0")
        for name in ("xon_B", "headroom_B", "jitter_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected at least 0")
        for name, most in (("xon_B", self.xoff_B), ("dt_s", self.hop_s / 2), ("hop_s", self.rtt_s / 2)):
            if getattr(self, name) > most:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected at most {most!r}")

    @property
    def sender_B(self) -> float:
        """What one sender sends in all."""
        return self.messages * self.message_B

    @property
    def bound_s(self) -> float:
        """The least time to the last acknowledgement: every byte through one port, and a round trip."""
        return self.senders * self.sender_B / self.rate_B_per_s + self.rtt_s

    def steps(self, time_s: float) -> int:
        """The steps that come nearest to a time."""
        return round(time_s / self.dt_s)

    def refuse_lossy(self) -> None:
        """Raises Unavailable where the buffer cannot hold what every port may."""
        need_B = self.senders * (self.xoff_B + self.headroom_B)
        if need_B > self.buffer_B:
            raise Unavailable(
                f"{self.senders} ports with threshold and headroom take {need_B:,.0f} B of a buffer of "
                f"{self.buffer_B:,.0f} B: it could not be lossless"
            )


class Control(Protocol):
    """What the senders of one variant do beside heeding pauses; one object a simulation."""

    notifications: int  # of congestion, that went to all senders together

    def may_send(self) -> Floats:
        """Bytes (N,) that each sender would hand to its wire in the next step, were there nothing else."""

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """What the step did: bytes sent, bytes that left the switch, bytes that stay in it."""


class LineRate:
    """Senders that hold nothing back."""

    notifications = 0

    def __init__(self, workload: Workload, seed: int) -> None:
        self._line_N = np.full(workload.senders, workload.rate_B_per_s * workload.dt_s)

    def may_send(self) -> Floats:
        """All that the line takes."""
        return self._line_N

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An incast under one variant's control. `held` keeps what was simulated."""

    workload: Workload
    seed: int
    control: Callable[[Workload, int], Control] = LineRate
    name: str = "PFC only"
    held: dict[str, Any] = field(default_factory=dict)


class Delay:
    """Hands each array (N,) on, a number of steps later; before that, zeros."""

    def __init__(self, steps: int, width: int) -> None:
        """Raises ValueError for a negative number of steps."""
        if steps < 0:
            raise ValueError(f"a delay of {steps} steps: expected at least 0")
        self._ring = np.zeros((steps + 1, width))
        self._at = 0

    def __call__(self, now_N: Floats | Bools) -> Floats:
        """What was given so many steps ago; the array is good until the next call."""
        self._ring[self._at] = now_N
        self._at = (self._at + 1) % len(self._ring)
        oldest: Floats = self._ring[self._at]
        return oldest
