"""The congestion suite: what an incast does to a rack switch, and what each control costs.

The baseline is PFC alone. Nothing is measured: a fluid model is stepped through time, of senders' wires, a
switch with PFC, and the receiver's port. The switch counts its bytes by ingress port (IEEE 802.1Qbb, clause
36): a port beyond `xoff_B` asks its sender to pause, and below `xon_B` to resume; the request takes `hop_s`,
and what is on the wire still arrives. The port sends at line rate, first in, first out; bytes that arrive
within one step are mixed. Shape letters: N senders, K time steps. Bytes and seconds throughout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from harness.records import Json, Origin, Reading, WrongResult
from suites.fabric.workload import CongestionWorkload

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

    def __init__(self, workload: CongestionWorkload, seed: int) -> None:
        self._line_N = np.full(workload.senders, workload.rate_B_per_s * workload.dt_s)

    def may_send(self) -> Floats:
        """Return what the line takes."""
        return self._line_N

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Ignore the step."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An incast under a variant's control."""

    workload: CongestionWorkload
    seed: int
    control: Callable[[CongestionWorkload, int], Control] = LineRate
    name: str = "PFC only"


class Delay:
    """Return each array (N,) a number of steps later; zeros before that."""

    def __init__(self, steps: int, width: int) -> None:
        self._ring = np.zeros((steps + 1, width))
        self._at = 0

    def __call__(self, now_N: Floats | Bools) -> Floats:
        """Return what was given that many steps ago; the array is valid until the next call."""
        self._ring[self._at] = now_N
        self._at = (self._at + 1) % len(self._ring)
        oldest: Floats = self._ring[self._at]
        return oldest


LONGEST = 100  # multiple of the bound after which a simulation is ended
LEFT_B = 1e-3  # share of all bytes that may be missing because of rounding


class SwitchHistory(NamedTuple):
    """What happened. Both arrays have one value per step, up to the one in which the last byte left the
    switch."""

    completion_s: float  # from the first moment to the last acknowledgement
    queue_K: Floats  # bytes in the switch
    pausing_K: Floats  # ports that requested a pause
    pauses: int  # number of pause requests


class Fifo:
    """Bytes by sender, in the order of the steps in which they arrived."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Floats, float]] = deque()

    def put(self, bytes_N: Floats) -> None:
        """Append bytes behind all others."""
        total_B = float(bytes_N.sum())
        if total_B > 0:
            self._waiting.append((bytes_N.copy(), total_B))

    def take(self, most_B: float) -> Floats | float:
        """Take this much from the front, or what there is: bytes (N,), or 0."""
        taken_N: Floats | float = 0.0
        while most_B > 0 and self._waiting:
            bytes_N, total_B = self._waiting.popleft()
            if total_B > most_B:
                part_N = bytes_N * (most_B / total_B)
                self._waiting.appendleft((bytes_N - part_N, total_B - most_B))
                bytes_N, total_B = part_N, most_B
            taken_N = taken_N + bytes_N
            most_B -= total_B
        return taken_N


class Switch:
    """The shared buffer by ingress port, with PFC."""

    def __init__(self, workload: CongestionWorkload) -> None:
        self._workload = workload
        self._line_B = workload.rate_B_per_s * workload.dt_s
        self._fifo = Fifo()
        self._held_N = np.zeros(workload.senders)
        self.pausing_N = np.zeros(workload.senders, dtype=bool)
        self.queue_B = 0.0
        self.pauses = 0

    def step(self, arrived_N: Floats) -> Floats:
        """Take in bytes (N,) and return those sent (N,); raises WrongResult where any are lost."""
        self._fifo.put(arrived_N)
        left_N = np.zeros(len(arrived_N)) + self._fifo.take(self._line_B)
        self._held_N = np.maximum(self._held_N + arrived_N - left_N, 0.0)
        self.queue_B = float(self._held_N.sum())
        workload = self._workload
        before_N = self.pausing_N
        self.pausing_N = (self._held_N > workload.xoff_B) | (before_N & (self._held_N >= workload.xon_B))
        self.pauses += int(np.count_nonzero(self.pausing_N & ~before_N))
        most_B = float(self._held_N.max())
        if most_B > workload.xoff_B + workload.headroom_B:
            raise WrongResult(
                f"not lossless: a port reached {most_B:,.0f} B, with threshold {workload.xoff_B:,.0f} B and "
                f"headroom of {workload.headroom_B:,.0f} B; a pause works after {2 * workload.hop_s:g} s"
            )
        return left_N


def simulate(workload: CongestionWorkload, control: Control, seed: int) -> SwitchHistory:
    """Simulate from the first byte to the last acknowledgement.

    Raises WrongResult where bytes would be lost, or where it takes longer than `LONGEST` times the bound.
    """
    count = workload.senders
    start_N = np.random.default_rng(seed).uniform(0.0, workload.jitter_s, count)
    unsent_N = np.full(count, workload.sender_B)
    unsent_B = count * workload.sender_B
    line_B = workload.rate_B_per_s * workload.dt_s
    hop = workload.steps(workload.hop_s)
    wire, word = Delay(hop, count), Delay(hop, count)
    switch = Switch(workload)
    queue: list[float] = []
    pausing: list[int] = []
    for step in range(workload.steps(LONGEST * workload.bound_s)):
        allowed_N = (word(switch.pausing_N) == 0) & (start_N <= step * workload.dt_s)
        sent_N = np.minimum(np.minimum(control.may_send(), line_B), unsent_N) * allowed_N
        unsent_N -= sent_N
        left_N = switch.step(wire(sent_N))
        control.saw(sent_N, left_N, switch.queue_B)
        queue.append(switch.queue_B)
        pausing.append(int(np.count_nonzero(switch.pausing_N)))
        unsent_B -= float(left_N.sum())
        if unsent_B < LEFT_B:
            rest_s = workload.rtt_s - hop * workload.dt_s  # to the receiver, and its acknowledgement
            done_s = (step + 1) * workload.dt_s + rest_s
            return SwitchHistory(done_s, np.array(queue), np.array(pausing, np.float64), switch.pauses)
    raise WrongResult(f"{unsent_B:,.0f} B were still missing after {LONGEST} times the bound")


METHOD = "fluid"


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises Unavailable for a switch that cannot be lossless."""
    given = CongestionWorkload(**workload)
    given.refuse_lossy()
    return Subject(given, seed)


class Session(NamedTuple):
    """What was simulated. `coarse` has twice the time step, which shows how much the step changes it."""

    subject: Subject
    trace: SwitchHistory
    coarse: SwitchHistory
    notifications: int


def prepare(subject: Subject) -> Session:
    """Simulate; raises WrongResult where bytes are lost."""
    trace, control = run(subject, subject.workload)
    coarse, _ = run(subject, replace(subject.workload, dt_s=2 * subject.workload.dt_s))
    return Session(subject, trace, coarse, control.notifications)


def check(session: Session) -> None:
    """Raise WrongResult where bytes arrive faster than they can."""
    workload, completion_s = session.subject.workload, session.trace.completion_s
    if completion_s < workload.bound_s - workload.dt_s:
        raise WrongResult(
            f"completed after {completion_s:g} s, but a port needs at least {workload.bound_s:g} s"
        )


def run(subject: Subject, workload: CongestionWorkload) -> tuple[SwitchHistory, Control]:
    """Run one simulation under the subject's control."""
    control = subject.control(workload, subject.seed)
    return simulate(workload, control, subject.seed), control


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about a network may name."""
    workload = session.subject.workload
    return {
        "network": "simulated",
        "pattern": "incast",
        "switches": "1",
        "senders": str(workload.senders),
        "rate": f"{workload.rate_B_per_s * 8e-9:g} Gbit/s",
        "message": f"{workload.message_B:g} B",
        "control": session.subject.name,
    }


def sample(session: Session) -> Iterator[Reading]:
    """Yield completion and its bound, the queue until the last byte left, pauses and the step's own error.

    That is the relative change of completion when the step is doubled. Under DCQCN a notification that falls
    elsewhere changes all that follows, as another seed does.
    """
    workload, trace, senders = session.subject.workload, session.trace, session.subject.workload.senders
    paused_s = float(trace.pausing_K.sum()) * workload.dt_s
    paused_share = paused_s / (len(trace.pausing_K) * workload.dt_s * senders)  # of all ports' time
    sent_B_per_s = senders * workload.sender_B / trace.completion_s
    yield Reading("completion", "s", workload.bound_s, Origin.CALCULATED, "bound")
    for metric, unit, value in (
        ("completion", "s", trace.completion_s),
        ("over_bound", "1", trace.completion_s / workload.bound_s),
        ("goodput", "1", sent_B_per_s / workload.rate_B_per_s),
        ("queue_mean", "B", float(trace.queue_K.mean())),
        ("queue_p99", "B", float(np.percentile(trace.queue_K, 99))),
        ("queue_max", "B", float(trace.queue_K.max())),
        ("pauses", "1", float(trace.pauses)),
        ("pause_time", "s", paused_s),
        ("pause_share", "1", paused_share),
        ("unpaused_share", "1", 1.0 - paused_share),
        ("notifications", "1", float(session.notifications)),
        ("step_error", "1", abs(session.coarse.completion_s / trace.completion_s - 1)),
    ):
        yield Reading(metric, unit, value, Origin.SIMULATED, METHOD)
