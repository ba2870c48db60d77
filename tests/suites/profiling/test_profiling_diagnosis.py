"""What the profiling suite names: injected losses as what they are, and nothing in the noise of steps."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from harness.instruments.traces.factors import TimeShare
from harness.instruments.traces.segments import State
from suites.profiling.diagnosis import ALL_RANKS, Recording, diagnose, lower_bound, middle
from suites.profiling.ranks import RankRecord
from suites.profiling.recorder import StepAccount

PAIRS = 14
STATES_MS = {"COMPUTING": 80.0, "COMMUNICATION": 6.0, "PREPARING": 5.0, "WAITING_FOR_DATA": 2.0}
NOTHING = {**dict.fromkeys(StepAccount._fields, 0.0), "chain_s": 1e-4}


def rank_of(number, rng, account=None, has_device=False, **longer_ms):
    """Return a rank's breakdown and record: its states with noise, longer in each second step of a pair."""
    scale = 1 + 0.03 * rng.standard_normal(2 * PAIRS)  # of all states of a step together
    columns = {
        State[name]: (ms + longer_ms.get(name, 0.0) * (np.arange(2 * PAIRS) % 2)) * scale
        for name, ms in STATES_MS.items()
    }
    order = rng.permuted(np.arange(2 * PAIRS).reshape(-1, 2), axis=1).ravel()  # of steps in time
    shares = [TimeShare(state, "", tuple(column[order] * 1e6)) for state, column in columns.items()]
    found = SimpleNamespace(
        rank=number,
        shares=shares,
        step_ns=tuple(sum(columns.values())[order] * 1e6),
        activity=SimpleNamespace(
            steps=[SimpleNamespace(number=2 * int(one)) for one in order],
            trace=SimpleNamespace(has_device=has_device),
        ),
        chosen=tuple(range(2 * PAIRS)),
    )
    without = [StepAccount(**NOTHING)] * PAIRS
    return found, RankRecord(without, [StepAccount(**{**NOTHING, **(account or {})})] * PAIRS, {})


def recording(*ranks):
    """Return the recording of these ranks."""
    found, records = zip(*ranks, strict=True)
    return Recording(SimpleNamespace(ranks=found), records, 1e-4)


def slowed(seed, account=None, **longer_ms):
    """Return a recording in which rank 1 takes longer."""
    rng = np.random.default_rng(seed)
    return recording(rank_of(0, rng), rank_of(1, rng, account, **longer_ms))


CASES = {
    "data_wait": ({"WAITING_FOR_DATA": 20.0}, {}, 0.020),
    "launch_sleep": ({"PREPARING": 16.0}, {}, 0.016),
    "competing_load": ({"COMPUTING": 25.0, "PREPARING": 2.0}, {"waited_for_core_s": 0.028}, 0.027),
    "cpu_quota": (
        {"COMPUTING": 25.0, "PREPARING": 2.0},
        {"waited_for_core_s": 0.028, "throttled_s": 0.025},
        0.027,
    ),
    "slower_clock": ({"COMPUTING": 20.0, "PREPARING": 1.0}, {"chain_s": 1.25e-4}, 0.021),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_of_one_rank_is_named_as_what_it_is(name):
    longer_ms, account, expected_s = CASES[name]
    found = diagnose(slowed(2, account, **longer_ms))
    assert [one[:2] for one in found] == [(name, 1)]
    assert found[0].seconds == pytest.approx(expected_s, abs=0.0025)


def test_a_slower_link_is_named_as_one_of_all_ranks():
    rng = np.random.default_rng(2)
    found = diagnose(recording(*(rank_of(rank, rng, COMMUNICATION=14.0) for rank in (0, 1))))
    assert [one[:2] for one in found] == [("slow_link", ALL_RANKS)]
    assert found[0].seconds == pytest.approx(0.014, abs=0.001)


def test_communication_that_a_late_rank_exposes_is_not_a_slower_link():
    rng = np.random.default_rng(2)
    waits = rank_of(1, rng, COMMUNICATION=14.0, WAITING_FOR_DATA=20.0)
    found = diagnose(recording(rank_of(0, rng, COMMUNICATION=14.0), waits))
    assert [one[:2] for one in found] == [("data_wait", 1)]


def test_longer_computing_that_nothing_explains_is_not_named():
    assert diagnose(slowed(2, COMPUTING=25.0)) == []


def test_a_slower_core_does_not_explain_longer_computing_of_a_gpu():
    """On an H100 it did, in 1 of 8 recordings: a rank's core was slower while it waited for data."""
    longer_ms, account, _ = CASES["slower_clock"]
    assert diagnose(slowed(2, account, has_device=True, **longer_ms)) == []


def test_nothing_is_named_in_steps_that_differ_by_noise():
    account = {"waited_for_core_s": 0.01, "throttled_s": 0.01, "chain_s": 1.1e-4}  # explains anything
    assert sum(bool(diagnose(slowed(seed, account))) for seed in range(200)) <= 2


def test_the_lower_bound_is_rarely_above_the_truth():
    rng = np.random.default_rng(5)
    above = sum(lower_bound(rng.standard_t(3, 14), 0.05) > 0 for _ in range(2000))
    assert 0.02 < above / 2000 < 0.07


def test_the_middle_leaves_disturbed_steps_out():
    assert middle(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0, 0.0])) == 1.0
    assert lower_bound(np.array([1.0]), 0.05) == -math.inf
