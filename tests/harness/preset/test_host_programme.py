"""`suite=all budget_min=60`: what it plans on a machine without a GPU, and what it runs in one sweep."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.claims.paper import load_answers
from harness.commands.main import main
from harness.config.run import Run, load
from harness.config.validation import ConfigError
from harness.preset.programme import (
    PresetHost,
    PresetRequest,
    Programme,
    claims_of,
    coverage,
    load_preset,
    planned_programme,
)
from harness.preset.run import PROGRAMME, programme_lines, run_programme
from harness.records import Cell, Limits, Record
from harness.sweep.environment import describe
from harness.sweep.plan import write_plan
from harness.sweep.store import Store, read_records

RESULTS = Path(__file__).parents[3] / "results" / "reference"
CLAIMS = {"stack_published": {"layered", "no_order_of_magnitude"}, "stack": {"layered"}}
ASKED = claims_of(load_preset("host"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that plans for two suites on this machine without its GPUs, with no earlier run."""
    here = describe()._replace(gpus=())
    monkeypatch.setattr("harness.preset.programme.describe", lambda: here)
    monkeypatch.setattr("harness.sweep.executors.local.describe", lambda ranks="": here)
    monkeypatch.setattr("harness.sweep.sweep.probe", lambda *_: None)
    monkeypatch.setattr("harness.sweep.plan.RESULTS", ())
    few = {suite: [one for one in ASKED[suite] if one.id in own] for suite, own in CLAIMS.items()}
    monkeypatch.setattr("harness.preset.programme.claims_of", lambda preset: few)

    def planned(budget_min: float = 60.0) -> Programme:
        return planned_programme(PresetRequest("host", budget_min, str(tmp_path / "host")))

    return planned


def test_every_judged_claim_of_the_answers_is_asked_for() -> None:
    named = {name for claim in load_answers().claims for name in claim.judged}
    suites = {name.partition("/")[0] for name in named}
    unjudged = {f"{suite}/{one.id}" for suite in suites for one in load_claims(suite) if one.not_judged}
    assert {f"{suite}/{one.id}" for suite, own in ASKED.items() for one in own} == named - unjudged
    assert set(ASKED) <= set(load_preset("host").suites)


@pytest.mark.parametrize("suite", sorted(ASKED))
def test_its_repeats_are_enough_for_each_value_that_a_whole_run_has(suite: str) -> None:
    """On the committed records: with the first processes alone, nothing lacks an interval."""
    records = read_records(RESULTS / suite)
    repeats = load([f"suite={suite}", *load_preset("host").suites[suite].overrides])[0].repeats
    asked = ASKED[suite]
    first = [one for one in records if one.cell.repeat < repeats]
    both = zip(judge(asked, records), judge(asked, first), strict=True)
    lost = [few.reason for every, few in both if few.ours is None and every.ours is not None]
    assert not lost, lost


def test_what_answers_most_per_minute_comes_first_and_nothing_needs_a_gpu(few: Any) -> None:
    programme = few()
    assert programme.fit[0].suite == "stack_published"  # two claims in a second
    assert not [work for work in (*programme.fit, *programme.late) if work.workload.endswith("_gpu")]
    lines = "\n".join(programme_lines(programme))
    assert "no GPU, " in lines
    assert re.search(r"1 +stack_published +\w+ and 8 more +1 +0.\d\*? +layered, no_order_of_magnitude", lines)
    said = "gives a value to 3 of the 3 claims that can have one here, and to 3 all that an answer needs"
    assert said in lines
    assert "needs a GPU: stack step_200m_1k_gpu (layered)" in " ".join(lines.split())


def test_a_workload_has_the_variants_that_claims_compare_in_one_process(few: Any) -> None:
    run = few().runs["stack"]
    assert run.repeats == 1
    assert run.variants_by_workload["step_1m_1k"] == {
        "baseline",
        "factorial.bf16",
        "factorial.bf16_compile_flash_fused_ahead_batch",
    }


def test_planning_is_part_of_the_budget(few: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 90.0])
    monkeypatch.setattr("harness.preset.programme.time.monotonic", lambda: next(clock))
    assert few(10).budget_s == 60 * 8.5
    clock = iter([0.0, 90.0])
    with pytest.raises(ConfigError, match=r"^budget_min=1: too small for anything; planning took 1\.5 min"):
        few(1)


def test_a_claim_without_a_gpu_here_says_so() -> None:
    run = load(["suite=stack"])[0]
    claims = [one for one in load_claims("stack") if one.id == "layered"]
    hosts = [PresetHost("any", gpus, 1 << 40, 1 << 40) for gpus in (0, 1)]
    without, with_gpu = (coverage(claims, run, load_preset("host"), host) for host in hosts)
    assert {(one.reason, one.hardware) for one in without[1]} == {("needs a GPU", True)}
    assert not with_gpu[1]
    assert sum(len(one.workloads) for one in with_gpu[0]) > sum(len(one.workloads) for one in without[0])


def test_a_list_is_swept_once_and_stated(few: Any) -> None:
    programme, swept = few(), list[Run]()

    def sweep_run(run: Run) -> None:
        swept.append(run)
        cell = Cell("one", run.suite, next(iter(run.workloads)), "baseline", "baseline", 0, 0, {})
        run.out.mkdir(parents=True, exist_ok=True)
        write_plan(run.out, run.suite, [])
        with Store(run.out) as store:
            store.append(Record(cell, "ok", "", (), (), {}, "", Limits(1.0), "", 0.0))

    run_programme(programme, sweep_run)
    published = [run for run in swept if run.suite == "stack_published"]
    assert len(published) == 1
    assert len(published[0].workloads) == 9
    content = json.loads((programme.request.folder / PROGRAMME).read_text())
    assert content["works"][0]["suite"] == "stack_published"
    assert content["works"][0]["ended"] == "done"


def test_only_words_of_a_budget_go_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite=all", "budget_min=10", "only=[baseline]"]) == 2
    error = capsys.readouterr().err
    assert "only=[baseline]" in error
    assert "budget_min" in error


def test_a_budget_that_is_misspelt_or_of_one_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite=all", "budget_mn=10"]) == 2
    assert "did you mean budget_min?" in capsys.readouterr().err
    assert main(["suite=memory", "budget_min=10"]) == 2
    assert "budget_min: goes with suite=all" in capsys.readouterr().err
