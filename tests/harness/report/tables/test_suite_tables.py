"""Tables that suites make themselves, and controls over combinations: against numbers worked out by hand."""

import html
import json
import re

import pytest
from factorial_records import factorial_records, overlapping
from reporting import drawn, points
from synthetic import made
from timed import timed_findings

from harness.report import write_report
from harness.report.figure import drawing_style
from harness.report.findings import what_pays
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, OwnTableBlock, load_spec
from suites.portability.report import (
    application,
    architectural,
    cascade,
    harmonic_mean,
    performance_portability,
)
from suites.stack import report

WHOLE = overlapping(frozenset("abc"))


def calculated(value, unit="1"):
    return (unit, "calculated", (value,))


@pytest.fixture
def stack_table(tmp_path, monkeypatch):
    """Return a maker of the stack suite's own tables, of a full factorial whose gains are known."""
    monkeypatch.setattr(report, "FACTORS", {"a": "First", "b": "Second", "c": "Third"})
    monkeypatch.setattr(report, "OVER", {"baseline": "plain", "all.a": "the first", "tf32": "TF32"})
    monkeypatch.setattr(report, "COMBINATIONS", "all")

    def table(name, **changes):
        block = f"  - {{own_table: {name}, title: T, workload: small}}\n"
        records = factorial_records(overlapping, **changes)
        findings = timed_findings(tmp_path, block, records, suite="stack")
        return findings.table(findings.blocks[0])

    return table


def test_rows_are_sorted_by_the_mean_over_orders_end_with_the_whole_and_name_what_was_not_timed(stack_table):
    rows = [[cell.text for cell in row] for row in stack_table("values").rows]
    assert [row[0] for row in rows] == ["First", "Second", "Third", "all, or the product"]
    assert rows[0][2].startswith("▲ 2.00× (2.00 … 2.00) ᵐ")
    assert rows[2][2].startswith("▼ 0.900×")
    assert rows[3][1].startswith(f"▲ {WHOLE:.2f}×")
    assert rows[3][2].startswith(f"▲ {2 * 1.5 * 0.9:.2f}×")
    without = stack_table("values", without=["all.b_c"])
    assert len(without.rows) == 3
    (note,) = without.notes
    assert note.startswith("not all combinations with Third have a right result")
    assert without.rows[-1][0].notes == without.notes


def test_the_whole_is_compared_with_each_named_baseline_and_each_pair_with_its_product(stack_table):
    table = stack_table("whole")
    row = dict(zip(table.header, (cell.text for cell in table.rows[0]), strict=True))
    assert row["All over plain"].startswith(f"▲ {WHOLE:.2f}×")
    assert row["All over the first"].startswith(f"▲ {WHOLE / 2:.2f}×")
    assert row["All over TF32"] == "–"
    assert row["All over that product"].startswith("▼ 0.980×")
    assert row["Greedy order"] == "First 2.00× → Third 1.26× → Second 1.050× ᵐ"
    pairs = stack_table("pairs")
    assert pairs.header == ("Technique", "Second", "Third")
    shown = [[cell.text[:7] for cell in row[1:]] for row in pairs.rows]
    assert shown == [["▼ 0.700", "▲ 1.40×"], ["", "= 1.000"]]


def test_bars_of_the_waterfall_end_where_the_next_begins_and_at_the_whole(stack_table, tmp_path):
    block = "  - {own_figure: waterfall, title: Fall, workload: small}\n"
    findings = timed_findings(tmp_path, block, factorial_records(overlapping), suite="stack")
    ends = {name.partition(":")[0]: x for name, (x, _) in points(drawn(findings, "waterfall")).items()}
    assert list(ends) == ["First", "Second", "Third", "All together"]
    assert ends["Third"] == pytest.approx(ends["All together"], abs=0.02)


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


def test_table_and_cascade_have_the_harmonic_means_and_how_many_platforms_run(portable):
    means = [harmonic_mean(each) for each in ([1.0], [0.5, 1.0], [1.0, 0.0])]
    assert means == pytest.approx([1, 2 / 3, 0])
    with pytest.raises(ValueError, match="at least one platform"):
        harmonic_mean([])
    table = performance_portability(PORTABLE, *portable)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert next(iter(rows)) == "fast"
    assert rows["fast"][0] == "3 of 3"
    assert rows["fast"][1].startswith("50 %")  # 3 / (1 + 1 + 4)
    assert rows["fast"][2].startswith("50 %")
    assert rows["partial"][:2] == ["1 of 3", "0 ᵐ"]
    with drawing_style("portable"):
        figure = cascade(OwnFigureBlock(id="portable", title="Portable", function="cascade"), *portable)
    assert "fast: PP 0.50" in figure.svg
    assert "partial: PP 0.00" in figure.svg
    assert figure.svg.count("of the best") == 3 + 3 + 1, "it ends where support ends"


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
