"""The congestion suite's fluid model against closed forms, its account of bytes, its step, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from variants import applied

from harness.config.run import load
from harness.records import WrongResult
from suites.fabric import congestion
from suites.fabric.congestion import Subject, simulate
from suites.fabric.dcqcn import MARKINGS, Dcqcn, Marking
from suites.fabric.receiver_admission import Settings as Admitted
from suites.fabric.receiver_admission import apply as admit
from suites.fabric.workload import CongestionWorkload

RUN = load(["suite=congestion"])[0]
ARMS = {variant.name: variant for variant in RUN.variants}
C, HOP, RTT, XOFF = 50e9, 1e-6, 22e-6, 240e3


def incast(**changed):
    """Return 16 senders of 1 MB that start together."""
    return CongestionWorkload(**{**RUN.workloads["incast_16"], "message_B": 1e6, "jitter_s": 0.0, **changed})


def under(variant, workload):
    """Return the variant's subject; `variant` by name."""
    return applied("congestion", ARMS[variant], Subject(workload, 1))


def traced(workload, variant="baseline"):
    return congestion.run(under(variant, workload), workload)[0]


class Watched:
    """A control that keeps what the switch told it: bytes sent and left, (K, N), and the queue, (K,)."""

    def __init__(self, inner):
        self.inner, self.told, self.may_send = inner, [], inner.may_send
        self.notifications = 0

    def saw(self, sent_N, left_N, queue_B):
        self.told.append((sent_N.copy(), left_N.copy(), queue_B))
        self.inner.saw(sent_N, left_N, queue_B)


def watched(subject):
    eyes = Watched(subject.control(subject.workload, 1))
    simulate(subject.workload, eyes, 1)
    return (np.array(one) for one in zip(*eyes.told, strict=True))


@pytest.mark.parametrize(
    ("name", "variant"),
    [*(("incast_16", one) for one in ARMS), ("stream_16_small", "receiver_admission.one_32k")],
)
def test_no_byte_is_lost_or_made_at_any_step(name, variant):
    """Sent is on the wire for `hop_s`; what has come and not left is the queue."""
    workload = CongestionWorkload(**{**RUN.workloads[name], "message_B": 400e3, "messages": 2})
    sent, left, queue = watched(under(variant, workload))
    hop = round(HOP / workload.dt_s)
    come = np.vstack([np.zeros((hop, 16)), sent[:-hop]])
    held = np.cumsum(come, axis=0) - np.cumsum(left, axis=0)
    assert held.min() > -1e-3
    assert held.sum(axis=1) == pytest.approx(queue, abs=1e-2)
    assert sent.sum(axis=0) == pytest.approx(np.full(16, 800e3))
    assert left.sum(axis=0) == pytest.approx(np.full(16, 800e3))
    assert sent.max() <= C * workload.dt_s * (1 + 1e-12)
    assert left.sum(axis=1).max() <= C * workload.dt_s * (1 + 1e-12)


@pytest.mark.parametrize("senders", [2, 16, 64])
def test_the_queue_grows_until_a_pause_has_come_to_the_senders_and_the_port_is_busy_to_the_end(senders):
    """By all rates but one, a hop later, until a pause and the wires behind it take two hops more."""
    trace = traced(incast(senders=senders))
    first = int(np.flatnonzero(trace.pausing_K)[0])
    time_K = 1e-7 * np.arange(1, first + 1)
    grown_K = (senders - 1) * C * np.clip(time_K - HOP, 0, None)
    assert trace.queue_K[:first] == pytest.approx(grown_K, abs=1.0)
    assert first * 1e-7 == pytest.approx(HOP + XOFF / (C * (1 - 1 / senders)), abs=2e-7)
    most_B = senders * XOFF + 2 * HOP * (senders - 1) * C
    assert trace.queue_K.max() == pytest.approx(most_B, abs=senders * C * 2e-7)
    assert trace.completion_s == pytest.approx(senders * 1e6 / C + RTT, abs=3e-7)


def test_headroom_for_two_hops_at_line_rate_suffices_and_less_is_reported():
    need_B = 2 * HOP * C * (1 - 1 / 16)
    traced(incast(headroom_B=need_B + 2 * C * 1e-7))
    with pytest.raises(WrongResult, match="not lossless: a port reached") as told:
        traced(incast(headroom_B=0.9 * need_B))
    assert "\n" not in str(told.value)


def admitted(slots, slot_B, workload, channels=1):
    subject = admit(Subject(workload, 1), Admitted(channels, slots, slot_B))
    return congestion.run(subject, workload)[0]


def test_a_slot_takes_a_round_trip_for_each_part_and_slots_for_everything_half_a_one():
    """Each takes a round trip and its time on the line; the last is acknowledged."""
    alone = traced(incast(senders=1, rate_B_per_s=C / 2))
    assert (alone.queue_K.max(), alone.pauses) == (pytest.approx(0, abs=1e-6), 0)
    assert alone.completion_s == pytest.approx(1e6 / (C / 2) + RTT, abs=3e-7)
    for slot_B in (64e3, 250e3):
        trace = admitted(1, slot_B, incast(senders=1))
        count = int(np.ceil(1e6 / slot_B))
        due_s = count * (RTT + 1e6 / count / C) + RTT / 2
        assert trace.completion_s == pytest.approx(due_s, abs=3e-7 * count)
    trace = admitted(1000, 131072.0, incast())
    assert trace.completion_s == pytest.approx(16e6 / C + 1.5 * RTT, abs=5e-7)
    same = admitted(4, 64e3, incast(senders=3))  # channels multiply slots
    assert admitted(2, 64e3, incast(senders=3), channels=2).completion_s == same.completion_s


@pytest.mark.parametrize("slots", [1, 2])
def test_never_more_of_a_connection_is_in_flight_than_was_admitted(slots):
    workload = incast(message_B=300e3)  # three slots of 100 kB each
    subject = admit(Subject(workload, 1), Admitted(1, slots, 131072.0))
    sent, left, _ = (np.cumsum(one, axis=0) for one in watched(subject))
    rest = round((RTT / 2 - HOP) / workload.dt_s)  # from the switch to the receiver
    come = np.concatenate([np.zeros((rest, 16)), left[:-rest]])
    most = (sent - come).max(axis=0)
    assert 0.6 * slots * 100e3 < most.min() <= most.max() <= slots * 100e3 + 1


def test_what_is_faster_than_the_port_is_caught(monkeypatch):
    def hurried(workload, control, seed):
        trace = simulate(workload, control, seed)
        return trace._replace(completion_s=0.9 * trace.completion_s)

    monkeypatch.setattr(congestion, "simulate", hurried)
    with pytest.raises(WrongResult, match="but a port needs"):
        congestion.check(congestion.prepare(under("baseline", incast())))


# DCQCN's senders, against the equations of Zhu et al., by hand and by chance.

G, DT = 1 / 256, 1e-7
ALWAYS, NEVER = 1e9, 0.0
"""Queues that mark every packet, and none."""


def two_senders():
    return Dcqcn(incast(senders=2), 1, MARKINGS["strict"])


def step(flows, queue_B, seconds=DT, sent_B=0.0, left_B=1.0, dt_s=DT):
    """Run steps in which each flow sends and leaves so many bytes; return the rates (K, N) after each."""
    rates, count = [], len(flows.rate_N)
    for _ in range(round(seconds / dt_s)):
        flows.saw(np.full(count, sent_B), np.full(count, left_B), queue_B)
        rates.append(flows.rate_N.copy())
    return np.array(rates)


def cut_once(flows):
    """Deliver one notification to the senders."""
    step(flows, ALWAYS)
    rates = step(flows, NEVER, 21e-6)
    assert flows.notifications == 2
    return rates


def cut_twice():
    """Return flows that two cuts left below the line rate, and their target."""
    flows = two_senders()
    cut_once(flows)
    step(flows, NEVER, 60e-6)
    step(flows, ALWAYS)
    step(flows, NEVER, 21e-6)
    assert flows.rate_N[0] == pytest.approx(0.75 * C * (1 - (1 - G) / 2))
    return flows, 0.75 * C


def test_marking_is_a_ramp_and_then_certain():
    for queue_s, due in ((0, 0), (1e-6, 0), (20.5e-6, 0.005), (40e-6, 0.01), (40.1e-6, 1)):
        assert MARKINGS["strict"].probability(queue_s) == pytest.approx(due)


def test_a_notification_halves_the_rate_one_way_to_the_receiver_and_back_later():
    flows = two_senders()
    rates = cut_once(flows)
    first = int(np.flatnonzero(rates[:, 0] < C)[0])
    assert first == round(21e-6 / DT) - 1
    assert rates[-1] == pytest.approx([C / 2, C / 2])


@pytest.mark.parametrize("first", ["time", "bytes"])
def test_recovery_goes_half_way_back_each_time_and_then_beyond(first):
    """From the fifth rise on the target rises too, by a thousandth of the line rate: equations (3), (4).

    Beyond five rises of both, by time and by bytes, it rises by ten times as much.
    """
    flows, target = cut_twice()
    rate = flows.rate_N[0]
    for by, count in ((first, 8), ("bytes" if first == "time" else "time", 7)):
        step(flows, NEVER, 2 * DT)  # what sums of steps may be short of a period
        for rises in range(1, count + 1):
            if count == 7 or rises >= 5:
                target += C / 100 if count == 7 and rises > 5 else C / 1000
            rate = (rate + target) / 2
            step(flows, NEVER, **({"seconds": 55e-6} if by == "time" else {"sent_B": 10e6}))
            assert flows.rate_N[0] == pytest.approx(rate, rel=1e-9), rises


def test_alpha_forgets_what_does_not_come_again():
    """Equations (1) and (2): after m quiet periods the next cut is by half of (1 - g)^m."""
    flows = two_senders()
    cut_once(flows)
    step(flows, NEVER, 55e-6 * 20 + 2 * DT)
    before, _ = flows.rate_N
    step(flows, ALWAYS)
    step(flows, NEVER, 21e-6)
    assert flows.rate_N[0] == pytest.approx(before * (1 - (1 - G) ** 20 / 2), rel=1e-4)


def test_a_flow_is_notified_once_in_fifty_microseconds_and_the_wait_for_a_marked_packet():
    """Packets of 1,024 B, each marked with probability p: one in 1 / -ln(1 - p) on average."""
    flows = Dcqcn(incast(senders=64, dt_s=5e-7), 3, Marking(0.0, 1.0, 0.01))
    step(flows, 0.1 * C, 0.005, left_B=0.1 * C * 5e-7, dt_s=5e-7)
    wait_s = 50e-6 + 1024 / (0.1 * C) / -math.log1p(-0.01 * 0.1)
    assert flows.notifications == pytest.approx(64 * 0.005 / wait_s, rel=0.05)
