"""Receiver-driven admission on top of PFC: a sender sends a slot's bytes once the receiver has cleared it.

As in NCCL's two-stage copy, each connection has slots of its own at the receiver, on each of its channels
(nccl, src/include/device.h: NCCL_STEPS; src/init.cc: NCCL_BUFFSIZE, which they divide). The receiver sends a
clear-to-send (CTS) for each free slot, to its senders in turn. A CTS waits in no queue; copying out of a slot
takes no time; a message longer than a slot is cut into equal parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np

from harness.bounds import Bounds, PositiveInt
from suites.fabric.congestion import Delay, Floats, Subject
from suites.fabric.workload import CongestionWorkload

CLEAR_S = 0.5e-6  # time between two CTS; chosen here: a thread posts them one by one
WHOLE = 1e-6  # share of a slot that may be missing because of rounding


@dataclass(frozen=True, slots=True)
class Settings:
    """`channels` of each connection, `slots` of each channel, `slot_B`: bytes of each slot."""

    channels: PositiveInt
    slots: PositiveInt
    slot_B: Annotated[float, Bounds(at_least=1)]

    @property
    def slots_per_connection(self) -> int:
        """Return the slots of one connection, of all its channels."""
        return self.channels * self.slots


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject whose senders wait to be cleared."""
    name = f"admission, {settings.slots_per_connection} × {settings.slot_B:g} B per connection"
    return replace(subject, control=partial(Admission, settings=settings), name=name)


class Admission:
    """The receiver's free slots, and the bytes that delivered clear-to-sends allow."""

    notifications = 0

    def __init__(self, workload: CongestionWorkload, seed: int, settings: Settings) -> None:
        count, half = workload.senders, workload.steps(workload.rtt_s / 2)
        parts = math.ceil(workload.message_B / settings.slot_B)
        self._part_B = workload.message_B / parts
        self._wanted = workload.messages * parts  # slots that each sender needs
        self._slots = settings.slots_per_connection
        self._cleared_N = np.zeros(count, dtype=np.int64)
        self._received_N, self._unsent_N = np.zeros(count), np.zeros(count)
        self._turns = np.arange(count)  # senders, who is next first
        self._since_clear_s, self._dt_s = CLEAR_S, workload.dt_s
        self._clear_to_send = Delay(half, count)
        self._to_receiver = Delay(half - workload.steps(workload.hop_s), count)

    def may_send(self) -> Floats:
        """Return the bytes that are cleared and not yet sent."""
        return self._unsent_N

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Account for arriving bytes, clear a free slot, and deliver clear-to-sends."""
        self._received_N += self._to_receiver(left_N)
        self._unsent_N = self._unsent_N - sent_N + self._part_B * self._clear_to_send(self._clear())

    def _clear(self) -> Floats:
        """Return 1 for the sender that gets a CTS, if one has a free slot and it is time; else 0, (N,)."""
        now_N = np.zeros(len(self._cleared_N))
        self._since_clear_s += self._dt_s
        if self._since_clear_s < CLEAR_S:
            return now_N
        whole_N = np.floor(self._received_N / self._part_B + WHOLE)
        free_N = (self._cleared_N < self._wanted) & (self._cleared_N - whole_N < self._slots)
        next_ = int(np.argmax(free_N[self._turns]))
        sender = self._turns[next_]
        if free_N[sender]:
            self._cleared_N[sender] += 1
            now_N[sender] = 1.0
            self._turns = np.roll(self._turns, -next_ - 1)
            self._since_clear_s = 0.0
        return now_N
