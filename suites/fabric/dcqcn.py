"""DCQCN on top of PFC: the switch marks, the receiver notifies, the sender adapts its rate.

Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3.1, whose equations
(1) to (4) are implemented below; constants are from its section 5.2 unless noted. Each sender is one flow.
Whether one packet of a step was marked follows from their number and the probability, by one random draw per
notification, so that a smaller step uses the same draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from suites.fabric.congestion import Bools, Delay, Floats, Subject
from suites.fabric.workload import CongestionWorkload

PACKET_B = 1024.0  # chosen here: an MTU of RoCE
NOTIFY_S = 50e-6  # at most one notification (CNP) per flow in this time
ALPHA_S = 55e-6  # alpha decays after this time without one
TIMER_S = 55e-6
COUNTER_B = 10e6  # not scaled to the line: ten times as much changes completion by under 0.1 %
RECOVERIES = 5  # F: increases that only return to the target
GAIN = 1 / 256  # g
INCREASE = 1e-3  # of the line rate: R_AI is 40 Mbit/s of 40 Gbit/s there
HYPER_INCREASE = 1e-2  # ten times that, a ratio that HPCC's simulator has too, see MARKINGS
LEAST = 1e-3  # of the line rate; chosen here


class Marking(NamedTuple):
    """RED (equation 5): thresholds in seconds of the port's rate, and the probability at the upper one."""

    low_s: float
    high_s: float
    most: float

    def probability(self, queue_s: float) -> float:
        """Return the probability that a packet is marked: 0 up to the lower threshold, 1 beyond the upper."""
        if queue_s <= self.low_s:
            return 0.0
        if queue_s > self.high_s:
            return 1.0
        return self.most * (queue_s - self.low_s) / (self.high_s - self.low_s)


MARKINGS = {
    # Zhu et al.: 5 kB, 200 kB and 1 % at 40 Gbit/s.
    "strict": Marking(1e-6, 40e-6, 0.01),
    # Li et al., HPCC, SIGCOMM 2019, for DCQCN: 100 kB and 400 kB at 25 Gbit/s, 20 %
    # (github.com/alibaba-edu/High-Precision-Congestion-Control, simulation/run.py).
    "relaxed": Marking(32e-6, 128e-6, 0.2),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """`marking`: thresholds of the switch, "strict" or "relaxed"."""

    marking: Literal["strict", "relaxed"]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject with senders that follow DCQCN."""
    control = partial(Dcqcn, marking=MARKINGS[settings.marking])
    return replace(subject, control=control, name=f"DCQCN, {settings.marking} marking")


class Dcqcn:
    """The notification and reaction points of all flows. Rates in B/s."""

    def __init__(self, workload: CongestionWorkload, seed: int, marking: Marking) -> None:
        count = workload.senders
        self._line, self._dt_s, self._marking = workload.rate_B_per_s, workload.dt_s, marking
        # The notification point.
        self._draws = [np.random.default_rng([seed, flow]) for flow in range(count)]
        self._hazard_due_N = np.array([draw.exponential() for draw in self._draws])
        self._hazard_N = np.zeros(count)
        self._since_notice_N = np.full(count, NOTIFY_S)
        back = workload.steps(workload.rtt_s - workload.hop_s)  # switch to receiver to sender
        self._notification_delay = Delay(back, count)
        self.notifications = 0
        # The reaction point.
        self.rate_N, self._target_N = np.full(count, self._line), np.full(count, self._line)
        self._alpha_N = np.ones(count)
        self._alpha_timer_N, self._timer_N, self._counter_N = (np.zeros(count) for _ in range(3))
        self._timer_rises_N, self._counter_rises_N = np.zeros(count), np.zeros(count)

    def may_send(self) -> Floats:
        """Return the bytes that the current rate allows."""
        return self.rate_N * self._dt_s

    def saw(self, sent_N: Floats, left_N: Floats, queue_B: float) -> None:
        """Mark and notify, increase rates, and cut those whose notification arrived."""
        noticed_N = self._notification_delay(self._notify(left_N, queue_B)) > 0
        self._decay()
        self._rise(sent_N)
        if noticed_N.any():
            self._cut(noticed_N)

    def _notify(self, left_N: Floats, queue_B: float) -> Bools:
        """Return the flows with a notification: at the first marked packet `NOTIFY_S` after the last.

        A packet escapes marking with probability 1 - p: one of n was marked once the sum of -n ln(1 - p)
        reaches an exponential draw.
        """
        self._since_notice_N += self._dt_s
        marked = self._marking.probability(queue_B / self._line)
        if marked == 0.0:
            return np.zeros(len(left_N), dtype=bool)
        ready_N = (self._since_notice_N >= NOTIFY_S) & (left_N > 0)
        hazard = np.inf if marked >= 1.0 else -np.log1p(-marked) / PACKET_B
        self._hazard_N[ready_N] += hazard * left_N[ready_N]
        fires_N: Bools = self._hazard_N >= self._hazard_due_N
        for flow in np.flatnonzero(fires_N):
            self._hazard_N[flow], self._hazard_due_N[flow] = 0.0, self._draws[flow].exponential()
            self._since_notice_N[flow] = 0.0
            self.notifications += 1
        return fires_N

    def _decay(self) -> None:
        """Apply equation (2): without a notification, alpha <- (1 - g) alpha."""
        self._alpha_timer_N += self._dt_s
        over_N = self._alpha_timer_N >= ALPHA_S
        if over_N.any():
            self._alpha_N[over_N] *= 1.0 - GAIN
            self._alpha_timer_N[over_N] -= ALPHA_S

    def _rise(self, sent_N: Floats) -> None:
        """Increase rates by the timer and by the byte counter, independently."""
        self._timer_N += self._dt_s
        self._counter_N += sent_N
        for elapsed_N, period, rises_N in (
            (self._timer_N, TIMER_S, self._timer_rises_N),
            (self._counter_N, COUNTER_B, self._counter_rises_N),
        ):
            over_N = elapsed_N >= period
            if over_N.any():
                elapsed_N[over_N] -= period
                rises_N[over_N] += 1
                self._step_up(over_N)

    def _step_up(self, flows_N: Bools) -> None:
        """Apply equations (3) and (4): half way to the target, which itself rises after `RECOVERIES`."""
        few_N = np.minimum(self._timer_rises_N, self._counter_rises_N)
        many_N = np.maximum(self._timer_rises_N, self._counter_rises_N)
        more_N = np.where(many_N < RECOVERIES, 0.0, np.where(few_N > RECOVERIES, HYPER_INCREASE, INCREASE))
        target_N = np.minimum(self._target_N + more_N * self._line, self._line)
        self._target_N = np.where(flows_N, target_N, self._target_N)
        self.rate_N = np.where(flows_N, (self._target_N + self.rate_N) / 2, self.rate_N)

    def _cut(self, flows_N: Bools) -> None:
        """Apply equation (1) and restart all increases."""
        self._target_N = np.where(flows_N, self.rate_N, self._target_N)
        cut_N = np.maximum(self.rate_N * (1.0 - self._alpha_N / 2), LEAST * self._line)
        self.rate_N = np.where(flows_N, cut_N, self.rate_N)
        self._alpha_N = np.where(flows_N, (1.0 - GAIN) * self._alpha_N + GAIN, self._alpha_N)
        for one_N in (self._alpha_timer_N, self._timer_N, self._counter_N):
            one_N[flows_N] = 0.0
        self._timer_rises_N[flows_N] = self._counter_rises_N[flows_N] = 0.0
