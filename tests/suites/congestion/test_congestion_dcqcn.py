"""DCQCN's senders against the equations of Zhu et al., by hand, by chance, and at the fixed point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from harness.config.run import load
from suites.fabric.congestion import Subject, simulate
from suites.fabric.dcqcn import MARKINGS, Dcqcn, Marking, Settings, apply
from suites.fabric.workload import CongestionWorkload

INCAST = load(["suite=congestion"])[0].workloads["incast_16"]
C, G, DT = 50e9, 1 / 256, 1e-7
ALWAYS, NEVER = 1e9, 0.0
"""Queues that mark every packet, and none."""


def network(**changed):
    return CongestionWorkload(**{**INCAST, "senders": 2, "jitter_s": 0.0, **changed})


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
    flows = Dcqcn(network(), 1, MARKINGS["strict"])
    cut_once(flows)
    step(flows, NEVER, 60e-6)
    step(flows, ALWAYS)
    step(flows, NEVER, 21e-6)
    assert flows.rate_N[0] == pytest.approx(0.75 * C * (1 - (1 - G) / 2))
    return flows, 0.75 * C


@pytest.mark.parametrize(
    ("queue_s", "due"), [(0, 0), (1e-6, 0), (20.5e-6, 0.005), (40e-6, 0.01), (40.1e-6, 1)]
)
def test_marking_is_a_ramp_and_then_certain(queue_s, due):
    assert MARKINGS["strict"].probability(queue_s) == pytest.approx(due)


def test_a_notification_halves_the_rate_one_way_to_the_receiver_and_back_later():
    flows = Dcqcn(network(), 1, MARKINGS["strict"])
    rates = cut_once(flows)
    first = int(np.flatnonzero(rates[:, 0] < C)[0])
    assert first == round(21e-6 / DT) - 1
    assert rates[-1] == pytest.approx([C / 2, C / 2])


def test_recovery_goes_half_way_back_each_time_and_then_beyond():
    """From the fifth rise on the target rises too, by a thousandth of the line rate: equations (3), (4)."""
    flows, target = cut_twice()
    rate = flows.rate_N[0]
    step(flows, NEVER, 2 * DT)  # what sums of steps may be short of a period
    for rises in range(1, 9):
        if rises >= 5:
            target += C / 1000
        rate = (rate + target) / 2
        step(flows, NEVER, 55e-6)
        assert flows.rate_N[0] == pytest.approx(rate, rel=1e-9), rises


def test_bytes_let_a_rate_rise_too():
    flows = Dcqcn(network(), 1, MARKINGS["strict"])
    cut_once(flows)
    step(flows, NEVER, sent_B=10e6)
    assert flows.rate_N[0] == pytest.approx(0.75 * C)


def test_beyond_five_rises_of_both_the_target_rises_by_ten_times_as_much():
    flows, target = cut_twice()
    rate = flows.rate_N[0]
    for rises in range(1, 9):  # by bytes first, then by time
        target += C / 1000 if rises >= 5 else 0.0
        rate = (rate + target) / 2
        step(flows, NEVER, sent_B=10e6)
        assert flows.rate_N[0] == pytest.approx(rate, rel=1e-9), rises
    step(flows, NEVER, 2 * DT)
    for rises in range(1, 8):
        target += C / 100 if rises > 5 else C / 1000
        rate = (rate + target) / 2
        step(flows, NEVER, 55e-6)
        assert flows.rate_N[0] == pytest.approx(rate, rel=1e-9), rises


def test_alpha_forgets_what_does_not_come_again():
    """Equations (1) and (2): after m quiet periods the next cut is by half of (1 - g)^m."""
    flows = Dcqcn(network(), 1, MARKINGS["strict"])
    cut_once(flows)
    step(flows, NEVER, 55e-6 * 100 + 2 * DT)
    step(flows, ALWAYS)
    step(flows, NEVER, 21e-6)
    assert flows.rate_N[0] == pytest.approx(C * (1 - (1 - G) ** 100 / 2), rel=1e-4)


def test_a_flow_is_notified_once_in_fifty_microseconds_at_most():
    flows = Dcqcn(network(), 1, MARKINGS["strict"])
    step(flows, ALWAYS, 2e-3)
    assert flows.notifications == pytest.approx(2 * 2e-3 / 50e-6, abs=2)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_the_wait_beyond_that_is_the_one_for_a_marked_packet(share):
    """Packets of 1,024 B, each marked with probability p: one in 1 / -ln(1 - p) on average."""
    marking = Marking(0.0, 1.0, 0.01)
    flows = Dcqcn(network(senders=64, dt_s=5e-7), 3, marking)
    step(flows, share * C, 0.01, left_B=0.1 * C * 5e-7, dt_s=5e-7)
    wait_s = 50e-6 + 1024 / (0.1 * C) / -math.log1p(-0.01 * share)
    assert flows.notifications == pytest.approx(64 * 0.01 / wait_s, rel=0.05)


def gap(marked, rate, line, packet_B=1024.0):
    """Return zero at the fixed point of Zhu et al.'s fluid model, section 5.1, equations (7) to (9).

    `rate` in packets/s. Without the target, which they share: alpha a^2 / (tau^2 (b + d)) = R_AI R (c + e).
    """
    counter, increase = 10e6 / packet_B, line / 1000 / packet_B
    notify_s, alpha_s, timer_s, recoveries = 50e-6, 55e-6, 55e-6, 5
    alpha = 1 - (1 - marked) ** (alpha_s * rate)
    a = 1 - (1 - marked) ** (notify_s * rate)
    b = marked / ((1 - marked) ** -counter - 1)
    d = marked / ((1 - marked) ** -(timer_s * rate) - 1)
    c = (1 - marked) ** (recoveries * counter) * b
    e = (1 - marked) ** (recoveries * timer_s * rate) * d
    return alpha * a**2 / (notify_s**2 * (b + d)) - increase * rate * (c + e)


LINE = 5e9
"""The paper's own: 40 Gbit/s."""


def long_run_rate(marked):
    """Return the mean rate, as a share of the line, of 32 flows of whose packets such a share is marked."""
    flows = Dcqcn(network(senders=32, rate_B_per_s=LINE, hop_s=2e-6, dt_s=1e-6), 3, Marking(0.0, 1.0, 1.0))
    flows.rate_N[:] = LINE / 4
    rates = []
    for _ in range(60_000):
        sent_N = flows.may_send()
        flows.saw(sent_N, sent_N, marked * LINE)
        rates.append(flows.rate_N.mean())
    return np.mean(rates[20_000:]) / LINE


def test_rates_follow_marking_as_in_the_fluid_model():
    """Means of products stand for products of means there, which makes its rates lower by some 15 to 20 %."""
    shares = 0.0008, 0.005
    model = [brentq(lambda r, p=p: gap(p, r, LINE), 1e3, 5e7) * 1024 / LINE for p in shares]
    ours = [long_run_rate(marked) for marked in shares]
    assert ours == pytest.approx(model, rel=0.3)
    assert ours[0] / ours[1] == pytest.approx(model[0] / model[1], rel=0.15)


def test_long_flows_find_about_the_marking_of_the_fixed_point():
    """The whole loop, no pause; the fixed point knows nothing of the queue's swings about its mean."""
    workload = network(
        senders=4, rate_B_per_s=LINE, message_B=0.1e9, xoff_B=5e6, xon_B=4e6, headroom_B=1e6,
        rtt_s=8e-6, hop_s=2e-6, dt_s=1e-6,
    )  # fmt: skip
    trace = simulate(workload, Dcqcn(workload, 5, MARKINGS["strict"]), 5)
    settled = trace.queue_K[len(trace.queue_K) // 4 : -len(trace.queue_K) // 8]
    marked = np.mean([MARKINGS["strict"].probability(queue / LINE) for queue in settled[::10]])
    due = brentq(lambda p: gap(p, LINE / 4 / 1024, LINE), 1e-6, 0.02)
    assert marked == pytest.approx(due, rel=0.5)


def test_an_unknown_marking_is_refused():
    with pytest.raises(ValueError, match="marking='lenient'; allowed: strict, relaxed"):
        apply(Subject(network(), 1), Settings("lenient"))
