"""A preset is run: within its budget, interrupted, and judged elsewhere. Its GPU is made up."""

import json
import time
from dataclasses import replace

import pytest
from test_preset import H100, SIZES_B
from test_preset import task as work

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.preset.programme import Preset, PresetHost, PresetRequest, Programme, SuitePreset, ordered
from harness.preset.run import PROGRAMME, ended_within, run_programme
from harness.sweep.runner import Interrupted


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def programme_of(folder, works, budget_min, words=("suite=memory",)):
    pairs = {work.workload: frozenset({"baseline"}) for work in works}
    (run,) = load([*words, f"out={folder / 'one'}"])
    fit, late = ordered(works, [], {}, 60 * budget_min)
    return Programme(
        PresetRequest("gpu", budget_min, str(folder)),
        Preset("cuda", 0.0, {"one": SuitePreset()}),
        PresetHost(H100, 1, SIZES_B[H100], 10**12),
        {"one": replace(run, variants_by_workload=pairs)},
        [], [], {"one": 0.0}, fit, late,
    )  # fmt: skip


def ends(folder):
    written = json.loads((folder / PROGRAMME).read_text())["works"]
    return [(one["workload"], one["ended"]) for one in written]


def test_a_suite_that_takes_longer_makes_later_works_fall_out_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("harness.preset.run.state_left_out", lambda *given: None)
    monkeypatch.setattr("harness.preset.run.recorded", lambda run: {"a cell": "its record"})
    caplog.set_level("INFO", "harness.sweep.progress")
    clock, swept = Clock(), []

    def slow(run):
        swept.append(list(run.workloads))
        clock.now_s += 150.0

    works = [work("llama_1b", 60), work("llama_7b", 60), work("llama_13b", 60), work("gpt_5m", 20)]
    folders = run_programme(programme_of(tmp_path, works, budget_min=4.0), slow, clock)
    assert swept == [["llama_1b"], ["llama_1b", "gpt_5m"]]  # what has ended stays in the folder's plan
    assert folders == [tmp_path / "one"]
    assert (
        "left out: one llama_7b would take 2 min, since its suite takes 2.5 times as long as estimated; "
        "2 min are left"
    ) in caplog.text
    late = [(one, "left out: no time") for one in ("llama_7b", "llama_13b")]
    assert ends(tmp_path) == [("llama_1b", "done"), *late, ("gpt_5m", "done")]


def test_a_work_that_is_running_when_time_is_up_is_ended_and_another_signal_ends_all():
    def end(run):
        raise Interrupted(130)

    finished = []

    def long(run):
        time.sleep(30)
        finished.append(run)

    assert not ended_within(0.05, long, None)
    assert not finished
    assert ended_within(30, lambda run: None, None)
    with pytest.raises(Interrupted):
        ended_within(30, end, None)


def test_what_has_run_is_stated_after_an_interruption_and_nothing_is_sent_without_a_cell(tmp_path):
    with pytest.raises(ConfigError, match=r"^budget_min=4: time was up before any cell had ended"):
        run_programme(programme_of(tmp_path, [work("llama_1b")], 4.0), lambda run: None, Clock())
    clock, swept = Clock(), []

    def interrupted_at_the_second(run):
        swept.append(run)
        clock.now_s += 10.0
        if len(swept) == 2:
            raise Interrupted(130)

    works = [work("llama_1b", 10), work("llama_7b", 10)]
    with pytest.raises(Interrupted):
        run_programme(programme_of(tmp_path, works, 4.0), interrupted_at_the_second, clock)
    assert ends(tmp_path) == [("llama_1b", "done")]
