"""Receiver-driven admission on top of PFC: a sender sends a buffer once the receiver has cleared it.

As in NCCL's two-stage copy, the receiver sends a clear-to-send (CTS) for each free buffer, to its senders in
turn, and again once a buffer is complete. So `credits` buffers bound the bytes in flight from all senders
together. A CTS has priority and waits in no queue; copying out of a buffer takes no time; a message longer
than a buffer is cut into equal parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from suites.congestion.subject import Delay, Floats, Subject, Workload

CLEAR_S = 0.5e-6
"""Time between two CTS; chosen here: a thread posts them one by one."""

WHOLE = 1e-6
"""Share of a buffer that may be missing because of rounding."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`credits`: buffers of the receiver for all senders together; `buffer_B`: bytes of each."""

    credits: int
    buffer_B: float


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject whose senders wait to be cleared.

    Raises ValueError for no credits or empty buffers.
    """
    if settings.credits < 1 or not settings.buffer_B > 0:
        raise ValueError(f"receiver_admission: {settings}: expected at least one credit and one byte")
    control = partial(Admission, settings=settings)
    return replace(subject, control=control, name=f"admission, {settings.credits} credits")


class Admission:
    """The receiver's free buffers, and the bytes that delivered clear-to-sends allow."""

    notifications = 0

    def __init__(self, workload: Workload, seed: int, settings: Settings) -> None:
        count, half = workload.senders, workload.steps(workload.rtt_s / 2)
        parts = math.ceil(workload.message_B / settings.buffer_B)
        self._part_B = workload.message_B / parts
        self._wanted = workload.messages * parts  # buffers that each sender needs
        self._credits = settings.credits
        self._cleared_N = np.zeros(count, dtype=np.int64)
        self._received_N, self._unsent_N = np.zeros(count), np.zeros(count)
        self._next, self._since_clear_s, self._dt_s = 0, CLEAR_S, workload.dt_s
        self._clear_to_send = Delay(half, count)
        self._to_receiver = Delay(half - workload.steps(workload.hop_s), count)

    def may_send(self) -> Floats:
        """Return the bytes that are cleared and not yet sent."""
        return self._unsent_N

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Account for arriving bytes, clear a free buffer, and deliver clear-to-sends."""
        self._received_N += self._to_receiver(left_N)
        self._unsent_N = self._unsent_N - sent_N + self._part_B * self._clear_to_send(self._clear())

    def _clear(self) -> Floats:
        """Return 1 for the sender that gets a CTS, if a buffer is free and it is time; else 0, (N,)."""
        now_N = np.zeros(len(self._cleared_N))
        self._since_clear_s += self._dt_s
        if self._since_clear_s < CLEAR_S or self._cleared_N.min() >= self._wanted:
            return now_N
        whole_N = np.floor(self._received_N / self._part_B + WHOLE)
        if self._cleared_N.sum() - whole_N.sum() < self._credits:
            while self._cleared_N[self._next] >= self._wanted:
                self._next = (self._next + 1) % len(now_N)
            self._cleared_N[self._next] += 1
            now_N[self._next] = 1.0
            self._next = (self._next + 1) % len(now_N)
            self._since_clear_s = 0.0
        return now_N
