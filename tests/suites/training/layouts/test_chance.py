"""The chance that a layout runs: its constants fitted anew, and what it does to a ranking."""

from __future__ import annotations

from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest

from harness.answer import Interval
from suites.published.step_time import cells_of
from suites.training.layouts import chance
from suites.training.layouts.layout import Layouts
from suites.training.step_time.prediction import accepted, predicted
from suites.training.step_time.published.rows import question
from suites.training.step_time.published.steps import published
from suites.training.step_time.questions import fastest, steps_of_rows

PLAYBOOK = [one for one in published() if one.source == "playbook"]
KNOWN = [(one, steps_of_rows([question(one)])) for one in PLAYBOOK]


def layout(**fields: int) -> Layouts:
    row = dict.fromkeys(Layouts._fields, 1) | {"zero": 1, "recompute": 0, "micro_batches": 16, **fields}
    return Layouts.of([row])


def test_the_error_of_peaks_is_that_of_published_ones():
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for run, steps in KNOWN:
        peak_GB = run.outcome.peak_GB
        if run.step_s and peak_GB and run.tp <= 8:
            error = float(np.log(peak_GB * 1e9 / predicted(steps).memory_B[0]))
            ratios[False].append(error)
            if run.tp == 8:
                ratios[True].append(error)
    of = chance.OF_PROGRAM["nanotron"]
    assert (len(ratios[False]), len(ratios[True])) == (77, 12)
    assert np.mean(ratios[False]) == pytest.approx(of.mean, abs=0.005)
    assert np.std(ratios[False]) == pytest.approx(of.above, abs=0.005)
    eight = chance.EIGHT_RANKS
    assert np.mean(ratios[True]) == pytest.approx(eight.mean, abs=0.005)
    assert np.std(ratios[True]) == pytest.approx(eight.above, abs=0.005)
    assert (of.below, eight.below) == (of.above, eight.above)


def test_what_fails_with_memory_to_spare_is_counted():
    tried, worked = Counter(), Counter()
    for run, steps in KNOWN:
        if accepted(steps.setting, steps.layouts)[0] and predicted(steps).filled[0] < 0.86:
            whole = run.sharding == "zero0" and run.dp > 1
            tried[whole] += 1
            worked[whole] += run.step_s is not None
    found = [(worked[whole] + 1) / (tried[whole] + 2) for whole in (False, True)]
    of = chance.OF_PROGRAM["nanotron"]
    assert found == pytest.approx([of.sharded, of.unsharded], abs=0.005)


def test_the_layouts_that_are_chosen_run_and_are_near_the_best():
    for cell in cells_of(PLAYBOOK).values():
        chosen = cell[fastest(predicted(steps_of_rows([question(one) for one in cell])))]
        assert chosen.step_s
        assert min(one.step_s for one in cell if one.step_s) >= 0.95 * chosen.step_s


def test_a_kind_whose_bytes_are_far_off_runs_less_surely():
    """By hand: at half of the room, 1.2 times as much likely and 2.4 times at most in 95 % of cases."""
    error = chance.PeakError.of(Interval(0.9, 1.2, 2.4))
    half = np.array([0.5])
    deviations = chance.NORMAL_90 * np.log(2 / 1.2) / np.log(2)
    found = float(chance.chance_to_run("torchtitan", layout(), half, error)[0])
    assert found == pytest.approx(NormalDist().cdf(deviations))
    assert found < float(chance.chance_to_run("torchtitan", layout(), half)[0])
    full = float(chance.chance_to_run("torchtitan", layout(), np.array([1 / 1.2]), error)[0])
    assert full == pytest.approx(0.5)
    narrow = chance.PeakError.of(Interval(0.999, 1.0, 1.001))
    assert narrow == chance.REPLAYED


def test_whole_states_run_less_often_and_a_fuller_device_never_more():
    alone, whole = layout(dp=1, zero=0), layout(dp=4, zero=0)
    filled = (0.5, 0.9, 1.0, 1.2)
    found = [float(chance.chance_to_run("nanotron", whole, np.array([one]))[0]) for one in filled]
    assert found == sorted(set(found), reverse=True)
    assert found[0] < chance.chance_to_run("nanotron", alone, np.array([0.5]))
