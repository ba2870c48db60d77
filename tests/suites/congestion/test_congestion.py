"""The congestion suite's fluid model against closed forms, its account of bytes, its step, and bad input."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from variants import applied

from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import UNITS, Origin, Unavailable, WrongResult
from suites.fabric import congestion
from suites.fabric.congestion import Delay, LineRate, Subject, simulate
from suites.fabric.receiver_admission import CLEAR_S
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
        self.inner, self.sent, self.left, self.queue = inner, [], [], []
        self.notifications = 0

    def may_send(self):
        return self.inner.may_send()

    def saw(self, sent_N, left_N, queue_B):
        self.sent.append(sent_N.copy())
        self.left.append(left_N.copy())
        self.queue.append(queue_B)
        self.inner.saw(sent_N, left_N, queue_B)


def watched(variant, workload):
    subject = under(variant, workload)
    eyes = Watched(subject.control(workload, 1))
    trace = simulate(workload, eyes, 1)
    return trace, np.array(eyes.sent), np.array(eyes.left), np.array(eyes.queue)


@pytest.mark.parametrize("variant", ARMS)
@pytest.mark.parametrize("name", ["incast_16", "stream_16_small"])
def test_no_byte_is_lost_or_made_at_any_step(variant, name):
    """Sent is on the wire for `hop_s`; what has come and not left is the queue."""
    workload = CongestionWorkload(**{**RUN.workloads[name], "message_B": 400e3, "messages": 2})
    _, sent, left, queue = watched(variant, workload)
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
def test_the_queue_grows_by_all_rates_but_one_until_the_first_pause(senders):
    trace = traced(incast(senders=senders))
    first = int(np.flatnonzero(trace.pausing_K)[0])
    time_K = 1e-7 * np.arange(1, first + 1)
    grown_K = (senders - 1) * C * np.clip(time_K - HOP, 0, None)
    assert trace.queue_K[:first] == pytest.approx(grown_K, abs=1.0)
    assert first * 1e-7 == pytest.approx(HOP + XOFF / (C * (1 - 1 / senders)), abs=2e-7)


@pytest.mark.parametrize("senders", [2, 16, 64])
def test_the_queue_tops_out_when_the_pause_has_reached_the_senders_and_their_wires_are_empty(senders):
    over_B = 2 * HOP * (senders - 1) * C
    step_B = senders * C * 2e-7
    assert traced(incast(senders=senders)).queue_K.max() == pytest.approx(senders * XOFF + over_B, abs=step_B)


@pytest.mark.parametrize("senders", [1, 2, 16, 64])
@pytest.mark.parametrize("rate", [25e9, 50e9])
def test_pfc_alone_keeps_the_port_busy_to_the_end(senders, rate):
    """Every byte through one port, and a round trip."""
    done_s = traced(incast(senders=senders, rate_B_per_s=rate)).completion_s
    assert done_s == pytest.approx(senders * 1e6 / rate + RTT, abs=3e-7)


def test_one_sender_makes_no_queue():
    trace = traced(incast(senders=1))
    assert (trace.queue_K.max(), trace.pauses, trace.pausing_K.sum()) == (pytest.approx(0, abs=1e-6), 0, 0)


def test_a_pause_is_asked_of_each_port_and_counted_in_time():
    """Four senders of 400 kB: all is on its way before the word comes, so each port fills and drains once."""
    trace = traced(incast(senders=4, message_B=400e3, xon_B=200e3))
    asked_s = HOP + XOFF / (C * 3 / 4)
    all_come_s = HOP + 400e3 / C
    most_B = 400e3 * 3 / 4
    drained_s = all_come_s + (most_B - 200e3) / (C / 4)
    assert trace.pauses == 4
    assert trace.largest_port_B == pytest.approx(most_B, rel=0.01)
    assert trace.pausing_K.sum() * 1e-7 == pytest.approx(4 * (drained_s - asked_s), rel=0.03)


@pytest.mark.parametrize("senders", [2, 16])
def test_headroom_for_two_hops_at_line_rate_suffices_and_less_is_reported(senders):
    need_B = 2 * HOP * C * (1 - 1 / senders)
    traced(incast(senders=senders, headroom_B=need_B + 2 * C * 1e-7))
    with pytest.raises(WrongResult, match="not lossless: a port reached") as told:
        traced(incast(senders=senders, headroom_B=0.9 * need_B))
    assert "\n" not in str(told.value)


def test_a_delay_hands_on_what_was_given_so_many_steps_ago():
    delay, given = Delay(3, 2), [np.array([k, -k], dtype=float) for k in range(1, 9)]
    got = [delay(one).copy() for one in given]
    assert np.array_equal(got, [np.zeros(2)] * 3 + given[:5])
    assert np.array_equal(Delay(0, 2)(given[4]), given[4])
    with pytest.raises(ValueError, match="at least 0"):
        Delay(-1, 2)


def admitted(slots, slot_B, workload, channels=1):
    subject = admit(Subject(workload, 1), Admitted(channels, slots, slot_B))
    return congestion.run(subject, workload)[0]


@pytest.mark.parametrize("slot_B", [64e3, 250e3])
def test_one_slot_takes_a_round_trip_for_each_part(slot_B):
    """Each takes a round trip and its time on the line; the last is acknowledged."""
    trace = admitted(1, slot_B, incast(senders=1))
    count = int(np.ceil(1e6 / slot_B))
    due_s = count * (RTT + 1e6 / count / C) + RTT / 2
    assert trace.completion_s == pytest.approx(due_s, abs=3e-7 * count)


def test_slots_for_everything_cost_half_a_round_trip():
    trace = admitted(1000, 131072.0, incast())
    assert trace.completion_s == pytest.approx(16e6 / C + 1.5 * RTT, abs=5e-7)


@pytest.mark.parametrize("senders", [2, 4, 8])
def test_slots_below_a_round_trip_bound_the_rate(senders):
    """A slot's turn takes a round trip, its own time on the line, and at most that of all the others."""
    done_s = admitted(1, 64e3, incast(senders=senders, message_B=64e3, messages=32)).completion_s
    turns, steps_s = 32, 3e-7
    assert (
        turns * (RTT + 64e3 / C) <= done_s <= turns * (RTT + senders * (64e3 / C + CLEAR_S) + steps_s) + RTT
    )


@pytest.mark.parametrize(("channels", "slots"), [(1, 4), (2, 2), (4, 1)])
def test_channels_multiply_slots(channels, slots):
    same = admitted(4, 64e3, incast(senders=3))
    assert admitted(slots, 64e3, incast(senders=3), channels).completion_s == same.completion_s


@pytest.mark.parametrize("slots", [1, 2])
def test_never_more_of_a_connection_is_in_flight_than_was_admitted(slots):
    workload = incast(message_B=300e3)  # three slots of 100 kB each
    subject = admit(Subject(workload, 1), Admitted(1, slots, 131072.0))
    eyes = Watched(subject.control(workload, 1))
    simulate(workload, eyes, 1)
    sent, left = (np.cumsum(np.array(one), axis=0) for one in (eyes.sent, eyes.left))
    rest = round((RTT / 2 - HOP) / workload.dt_s)  # from the switch to the receiver
    come = np.concatenate([np.zeros((rest, 16)), left[:-rest]])
    most = (sent - come).max(axis=0)
    assert 0.6 * slots * 100e3 < most.min() <= most.max() <= slots * 100e3 + 1


@pytest.mark.parametrize(("senders", "share"), [(4, 0.41), (8, 0.82), (12, 1.0), (16, 1.0)])
def test_slots_fill_the_port_once_all_together_cover_the_round_trip(senders, share):
    """Their bytes over the round trip and a slot's own time; slots that collide keep colliding."""
    done_s = admitted(1, 125e3, incast(senders=senders, message_B=4e6)).completion_s
    assert share == pytest.approx(min(1, senders * 125e3 / (RTT + 2.5e-6) / C), abs=0.03)
    assert senders * 4e6 / C / (done_s - 1.5 * RTT) == pytest.approx(share, rel=0.1)


def test_one_slot_below_the_threshold_pauses_no_port_and_four_do():
    trace = admitted(1, 131072.0, incast())
    assert (trace.pauses, trace.pausing_K.sum()) == (0, 0)
    assert trace.largest_port_B <= 131072
    assert admitted(4, 131072.0, incast()).pauses > 0


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *(("incast_16", name) for name in ARMS if not name.startswith("dcqcn")),
        ("incast_16_200g", "receiver_admission.two_128k"),
        ("stream_16_small", "receiver_admission.one_32k"),
        ("stream_16_small", "receiver_admission.nccl_default"),
    ],
)
def test_half_the_step_changes_little(name, variant):
    """By 3 % of completion, 5 % of the largest queue and 10 kB; of first order, so as much again is left."""
    workload = CongestionWorkload(
        **{**RUN.workloads[name], "message_B": min(RUN.workloads[name]["message_B"], 2e6)}
    )
    ours, fine = (traced(replace(workload, dt_s=dt_s), variant) for dt_s in (1e-7, 0.5e-7))
    assert ours.completion_s == pytest.approx(fine.completion_s, rel=0.03)
    assert ours.queue_K.mean() == pytest.approx(fine.queue_K.mean(), abs=10e3 + 0.05 * fine.queue_K.max())


@pytest.mark.parametrize("variant", ["dcqcn.strict", "dcqcn.relaxed"])
def test_half_the_step_changes_little_until_chance_has_grown(variant):
    """For some first cuts; later a notification that falls elsewhere changes what follows, as a seed does."""
    workload = CongestionWorkload(**{**RUN.workloads["incast_16"], "message_B": 2e6})
    ours, fine = (traced(replace(workload, dt_s=dt_s), variant) for dt_s in (1e-7, 0.5e-7))
    assert ours.queue_K[:2000].mean() == pytest.approx(fine.queue_K[:4000].mean(), rel=0.03)
    assert ours.queue_K[:2000].max() == pytest.approx(fine.queue_K[:4000].max(), rel=0.03)


@pytest.mark.parametrize("variant", ARMS)
def test_a_variants_readings_agree_with_one_another(variant):
    session = congestion.prepare(under(variant, incast(jitter_s=2e-6)))
    congestion.check(session)
    said = list(congestion.sample(session))
    found = {one.metric: one.value for one in said if one.method == congestion.METHOD}
    bound_s = next(one.value for one in said if one.method == "bound")
    assert all(one.unit in UNITS and np.isfinite(one.value) for one in said)
    assert {one.origin for one in said if one.method != "bound"} == {Origin.SIMULATED}
    assert found["completion"] >= bound_s - 1e-7
    assert found["over_bound"] == pytest.approx(found["completion"] / bound_s)
    assert found["goodput"] * found["completion"] * C == pytest.approx(16e6)
    assert found["queue_mean"] <= found["queue_p99"] <= found["queue_max"] <= 16 * (XOFF + 220e3)
    assert found["largest_port"] * 16 >= found["queue_max"] - 1
    assert found["unpaused_share"] == 1 - found["pause_share"]
    assert (found["pauses"] == 0) == (found["pause_time"] == 0)
    assert 0 <= found["step_error"] < (0.5 if variant.startswith("dcqcn") else 0.05)
    assert congestion.conditions(session)["network"] == "simulated"


def test_what_is_faster_than_the_port_is_caught(monkeypatch):
    def hurried(workload, control, seed):
        trace = simulate(workload, control, seed)
        return trace._replace(completion_s=0.9 * trace.completion_s)

    monkeypatch.setattr(congestion, "simulate", hurried)
    with pytest.raises(WrongResult, match="but a port needs"):
        congestion.check(congestion.prepare(under("baseline", incast())))


def test_a_simulation_that_never_ends_is_ended():
    class Silent(LineRate):
        def may_send(self):
            return np.zeros(2)

    with pytest.raises(WrongResult, match="still missing after 100 times"):
        simulate(incast(senders=2, message_B=1e3), Silent(incast(senders=2), 1), 1)


def test_the_longest_step_can_be_doubled():
    longest = congestion.build({**RUN.workloads["incast_16_small"], "dt_s": 2.5e-7}, 1)
    congestion.check(congestion.prepare(longest))


def test_a_buffer_that_cannot_be_lossless_is_refused():
    with pytest.raises(
        Unavailable, match="16 ports with threshold and headroom need 7,360,000 B of a buffer"
    ):
        congestion.build({**RUN.workloads["incast_16"], "buffer_B": 7e6}, 1)


@pytest.mark.parametrize("settings", [Admitted(0, 1, 1.0), Admitted(1, 0, 1.0), Admitted(1, 1, 0.0)])
def test_no_slots_are_refused(settings):
    with pytest.raises(ValueError, match="at least one channel, one slot"):
        admit(Subject(incast(), 1), settings)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("suite.workloads.incast_16.senders=0", "senders"),
        ("suite.workloads.incast_16.rate_B_per_s=0", "rate_B_per_s"),
        ("suite.workloads.incast_16.message_B=nan", "message_B=nan: expected a number of at least 1"),
        ("suite.workloads.incast_16.messages=0", "messages=0: expected a whole number of at least 1"),
        ("suite.workloads.incast_16.headroom_B=-1", "headroom_B=-1: expected a number of at least 0"),
        ("suite.workloads.incast_16.xon_B=3e5", "at most xoff_B"),
        ("suite.workloads.incast_16.headroom_B=3.1e7", "at most buffer_B"),
        ("suite.workloads.incast_16.dt_s=3e-7", "dt_s=3e-07: expected at most hop_s * 0.25 (2.5e-07)"),
        ("suite.workloads.incast_16.hop_s=12e-6", "hop_s=1.2e-05: expected at most rtt_s * 0.5 (1.1e-05)"),
        ("suite.optimizations.dcqcn.variants.strict.marking=lenient", "strict, relaxed"),
        ("suite.optimizations.receiver_admission.variants.one_32k.slots=0", "at least 1"),
    ],
)
def test_the_command_line_is_checked_before_anything_runs(word, told):
    with pytest.raises(ConfigError) as error:
        load(["suite=congestion", word])
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_the_harness_runs_it(tmp_path):
    fields = "senders: 4, message_B: 1e6, rate_B_per_s: 5e10, xoff_B: 1e5, xon_B: 9e4, headroom_B: 2e5"
    words = [
        "suite=congestion",
        f"+suite.workloads.tiny={{{fields}, source: here}}",
        "workloads=[tiny]",
        "repeats=2",
    ]
    command = [sys.executable, "-m", "harness", *words, f"out={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "report.md").read_text()
    assert "Admission 1 × 32 KiB" in report
    assert "14 cells have a result." in report
    assert "Failed:" not in report
