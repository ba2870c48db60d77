"""Tables that suites make themselves, and controls over combinations: against numbers worked out by hand."""

import html
import json
import re

import pytest
from synthetic import made
from timed import timed_findings

from harness.report import write_report
from harness.report.findings import what_pays
from harness.report.results import ResultIndex
from harness.report.spec import OwnTableBlock, load_spec
from suites.portability.report import application, architectural


def calculated(value, unit="1"):
    return (unit, "calculated", (value,))


TIMES = {
    "baseline": {"a": 2.0, "b": 4.0, "c": 1.0},
    "fast": {"a": 1.0, "b": 1.0, "c": 4.0},
    "partial": {"a": 1.5},
    "baseline_again": {"a": 0.1},  # never counts as the best
}


@pytest.fixture
def portable():
    """Return the spec of the suite and an index of times on three platforms."""
    records = [made("b", "partial", {}, status="wrong_result", reason="output is off")]
    for variant, times in TIMES.items():
        for workload, time in times.items():
            figures = {("time", "warm"): ("s", "measured", (time,))}
            if variant == "baseline" and workload != "c":
                figures["flops", ""] = calculated(8.0)
                figures["matmul_rate", ""] = ("FLOP/s", "measured", (16.0,))
            records.append(made(workload, variant, figures))
    spec = load_spec("portability")
    return spec, ResultIndex(records, spec.ranking)


PORTABLE = OwnTableBlock(id="portable", title="Portable", function="performance_portability")


def test_efficiencies_are_the_best_time_and_the_devices_rate_over_ones_own(portable):
    _, index = portable
    third = pytest.approx(1 / 3)
    assert application(index, PORTABLE) == {
        "baseline": {"a": 0.5, "b": 0.25, "c": 1.0},
        "fast": {"a": 1.0, "b": 1.0, "c": 0.25},
        "partial": {"a": pytest.approx(2 / 3), "b": 0.0, "c": 0.0},
    }
    assert architectural(index, PORTABLE) == {
        "fast": {"a": 0.5, "b": 0.5},
        "baseline": {"a": 0.25, "b": 0.125},
        "partial": {"a": third, "b": 0.0},
    }


COST = {"1": {"a": 10.0, "b": 20.0}, "2": {"a": 30.0, "b": 40.0}}
WHAT_IF = """  - what_if: w
    title: W
    metrics: {cost: {title: Cost}}
    controls:
      rate: {title: Rate, start: "2", names: {"1": slow, "2": fast}}
      place: {title: Place, start: a}
"""


def controlled(folder, costs):
    """Return the findings of a record of each combination of a rate and a place, and their table."""
    figures = {
        ("cost", f"rate={rate}, place={place}"): calculated(value)
        for rate, of in costs.items()
        for place, value in of.items()
    }
    findings = timed_findings(folder, WHAT_IF, [made(figures={**figures, ("cost", "x"): calculated(99.0)})])
    return findings, findings.table(findings.blocks[0])


def test_controls_reach_every_combination_and_the_table_changes_one_input_at_a_time(tmp_path):
    findings, table = controlled(tmp_path, COST)
    shown = {row[0].text: row[1].text.split()[0] for row in table.rows}
    assert shown == {"nothing": "30", "Rate: slow": "10", "Place: b": "40"}
    assert {row[1].cell for row in table.rows} == {"invented-small-baseline-0"}
    rate, place = table.picker.controls
    assert rate.choices == (("rate=1", "slow"), ("rate=2", "fast"))
    assert table.picker.start == f"{rate.start}, {place.start}" == "rate=2, place=a"
    expected = {f"rate={r}, place={p}": (f"{v:.0f} ᶜ",) for r, of in COST.items() for p, v in of.items()}
    assert dict(table.picker.entries) == expected
    text = write_report(tmp_path / "out", findings).read_text()
    entries = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    chosen = re.findall(r'<option value="([^"]+)" selected>', text)
    assert entries[", ".join(map(html.unescape, chosen))] == ["30 ᶜ"]
    _, several = controlled(tmp_path, {"10": {"a": 1.0}, "2": {"a": 1.0}, "1e+2": {"a": 1.0}})
    assert [value for value, _ in several.picker.controls[0].choices] == ["rate=2", "rate=10", "rate=1e+2"]
    _, without_start = controlled(tmp_path, {"1": {"a": 1.0}})
    assert (without_start.rows, without_start.picker) == ((), None)


STATES = """  - {errors: e, title: E, metric: error, headline: second, within: 0.1}
answer:
  states:
    - {text: "It is {}.", values: [{workload: small, optimization: baseline, metric: cost}]}
    - {text: "Lost {}.", values: [{workload: small, optimization: baseline, metric: absent}]}
"""


def test_an_answer_says_how_many_are_within_and_states_recorded_values(tmp_path):
    figures = {("error", "first"): calculated(0.01), ("error", "second"): calculated(-0.3)}
    records = [
        made("small", figures=figures | {("cost", ""): calculated(2.0)}),
        made("large", figures={("error", "second"): calculated(0.1)}),
    ]
    assert what_pays(timed_findings(tmp_path, STATES, records)) == [
        "second: not all: 1 of 2 published values are met within 10 %; median error 20 %, worst −30 %.",
        "first: all of 1 published value is met within 10 %; median error 1 %, worst +1 %.",
        "It is 2 ᶜ.",
    ]
