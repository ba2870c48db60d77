"""Recordings of real ranks: what was injected is in their traces, and nothing else is."""

import os
from contextlib import ExitStack
from random import Random

import numpy as np
import psutil
import pytest

from harness.instruments.control_group import CPU, group_places
from harness.instruments.traces.segments import State
from harness.records import Unavailable
from suites.profiling.diagnosis import Recording, by_step_s, column, step_times_s
from suites.profiling.measure import calibrated, recorded
from suites.profiling.ranks import RecordedRanks
from suites.profiling.recorder import Injection, Subject, baseline
from suites.profiling.workload import Workload

pytestmark = pytest.mark.timeout(300)

BUSY_PERCENT = 20  # use of a core from which on others share it

TINY = {
    "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 32, "seq_len": 16, "recorded_pairs": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    workload = Workload(**TINY, parallelism="fsdp2")
    with ExitStack() as stack:
        ranks = RecordedRanks(workload)
        stack.callback(ranks.close)
        subject = baseline(workload, 0)
        ranks.enter("step", subject.step)
        yield ranks, subject


def record(ranks, injection: Injection | None) -> Recording:
    pool, subject = ranks
    return recorded(pool, "step", Subject(subject.workload, 0, subject.step, injection), Random(1))


@pytest.mark.parametrize(
    ("injection", "state"),
    [
        (Injection("data_wait", 1, seconds=0.005), State.WAITING_FOR_DATA),
        (Injection("launch_sleep", 1, seconds=0.002, every=3), State.PREPARING),
    ],
)
def test_a_sleep_is_in_the_trace_of_its_rank_and_its_steps_alone(ranks, injection, state):
    recording = record(ranks, injection)
    slept_s = column(recording.records[1].injected, "slept_s")
    assert slept_s.min() >= injection.seconds
    assert np.all(by_step_s(recording.found.ranks[1], state)[1::2] >= slept_s)
    assert not column(recording.records[1].without, "slept_s").any()
    assert not column(recording.records[0].injected, "slept_s").any()


def test_the_states_of_each_rank_sum_to_its_steps(ranks):
    recording = record(ranks, None)
    for rank, own in zip(recording.found.ranks, recording.records, strict=True):
        total_s = np.sum([by_step_s(rank, state) for state in State], axis=0)
        assert total_s == pytest.approx(step_times_s(rank), rel=1e-6)
        outside_s = np.ravel(np.stack([column(own.without, "seconds"), column(own.injected, "seconds")], 1))
        assert np.all(step_times_s(rank) <= outside_s)
    assert recording.found.factors.observed_s == pytest.approx(recording.found.step_s, rel=0.01)


def test_a_competing_process_runs_only_in_the_steps_that_it_is_injected_into(ranks):
    if not ranks[0].cores:
        pytest.skip("fewer cores than ranks")
    recording = record(ranks, Injection("competing_load", 1, share=0.5))
    assert column(recording.records[1].injected, "load_s").sum() > 0
    assert column(recording.records[1].without, "load_s").sum() == pytest.approx(0, abs=0.004)  # a tick


def test_a_quota_is_taken_away_after_the_recording(ranks):
    """A fifth of a core is less than a process gets next to others: the kernel counts on a busy core, too.

    On a core that others do not use, the kernel counts what the quota takes.
    """
    injection = Injection("cpu_quota", 1, share=0.2)
    try:
        core = ranks[0].cores[1]
        before = psutil.cpu_percent(0.3, percpu=True)[core]
        counted = calibrated(ranks[0], "step", injection)
        quiet = max(before, psutil.cpu_percent(0.3, percpu=True)[core]) < BUSY_PERCENT
        assert counted > 0.2
        assert counted < 1.2 or not quiet
        record(ranks, injection)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert not list(group_places(CPU).parent.glob(f"{CPU.prefix}{os.getpid()}-*"))
