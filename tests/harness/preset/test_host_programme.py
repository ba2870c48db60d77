"""`suite=all budget_min=60`: what it plans on a machine without a GPU, and what it runs in one sweep."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.claims.paper import load_answers
from harness.config.run import load
from harness.preset.programme import PresetRequest, Programme, claims_of, load_preset, planned_programme
from harness.preset.run import programme_lines
from harness.sweep.environment import describe
from harness.sweep.store import read_records

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
    first = [one for one in records if one.cell.repeat < repeats]
    if len(first) == len(records):
        return  # the whole run
    both = zip(judge(ASKED[suite], records), judge(ASKED[suite], first), strict=True)
    assert not [few.reason for every, few in both if few.ours is None and every.ours is not None]


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
    assert programme.runs["stack"].repeats == 1
    assert programme.runs["stack"].variants_by_workload["step_1m_1k"] == {  # which claims compare
        "baseline", "factorial.bf16", "factorial.bf16_compile_flash_fused_ahead_batch",
    }  # fmt: skip
