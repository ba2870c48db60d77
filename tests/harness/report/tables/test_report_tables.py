"""Tables and figures: values as recorded, none where there is none, against numbers worked out by hand."""

import html
import json
import re
from xml.etree import ElementTree

import pandas
import pytest
from reporting import drawn, found, texts, tips
from synthetic import made, memory_records
from timed import timed_findings

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings
from harness.claims.paper import load_answers
from harness.report import write_report
from harness.report.comparison import compared
from harness.report.index.answers_page import TABLES_HEADER, paper_tables
from harness.report.results import ResultIndex, write_measurements
from harness.report.spec import OwnTableBlock, Pairing, load_spec
from harness.report.summary import wrong_results
from harness.report.tables import divided
from harness.report.write import benchmark_json
from suites.portability.report import application, architectural


def test_what_was_wrong_in_one_process_of_three_shows_no_value_and_says_in_how_many():
    figures = {("time", "warm"): ("s", "measured", (1.0, 2.0))}
    records = [
        made("small", "racy", figures, repeat=i, status=status, reason="a race" if status != "ok" else "")
        for i, status in enumerate(("ok", "wrong_result", "ok"))
    ]
    index = ResultIndex([made("small", "baseline", figures), *records], {})
    assert [one.optimization for one in index.table.values()] == ["baseline"]
    told = index.reason("small", "racy", "time", "warm")
    assert told == ("wrong result", "racy on small: wrong result: a race")
    names = [one["name"] for one in json.loads(benchmark_json("made", index, {}))["benchmarks"]]
    assert names == ["small[baseline]"]
    again = records[2]._replace(status="wrong_result", reason="another")
    runs = (records, records[1:2], [*records[:2], again])
    assert [wrong_results(some, lambda _, name: name) for some in runs] == [
        ["racy on small (1 of 3 processes): a race"],
        ["racy on small: a race"],
        ["racy on small (2 of 3 processes): a race (and 1 other reason)"],
    ]


def test_what_is_calculated_of_code_stays_where_another_process_was_wrong():
    figures = {
        ("registers", "sm_90"): ("1", "calculated", (32.0,)),
        ("time", "warm"): ("s", "measured", (1.0,)),
    }
    records = [
        made("small", "racy", figures, repeat=i, status=status)
        for i, status in enumerate(("ok", "wrong_result"))
    ]
    kept = [(one.metric, one.median) for one in ResultIndex(records, {}).table.values()]
    assert kept == [("registers", 32.0)]
    assert ResultIndex(records[1:], {}).table == {}


@pytest.mark.parametrize(
    ("ours", "base", "expected"),
    [
        ((0.5,), (1.0,), ("pays", "single")),
        ((1.004,), (1.0,), ("no difference", "single")),
        ((1.006,), (1.0,), ("costs", "single")),
        ((0.8, 0.9), (1.0, 1.1, 1.2), ("pays", "ranges")),
        ((0.8, 1.3), (1.0, 1.1, 1.2), ("undecided", "ranges")),
    ],
)
def test_what_an_optimization_does_to_bytes(ours, base, expected):
    """Samples that do not pair are judged by their ends; of what is better higher, more pays."""
    runs = {"baseline": base, "other": ours}
    records = [made("w", one, {("peak", ""): ("B", "measured", values)}) for one, values in runs.items()]
    pairing = Pairing("peak", "", "baseline", equal_within=0.005)
    found = [
        compared(ResultIndex(records, {}), "w", "other", pairing._replace(better=b))
        for b in ("lower", "higher")
    ]
    assert (found[0].effect, found[0].ratio.basis) == expected
    assert found[1].effect == {"pays": "costs", "costs": "pays"}.get(expected[0], expected[0])


def calculated(value, unit="1"):
    return (unit, "calculated", (value,))


def test_a_value_is_divided_by_that_of_its_own_method_else_by_the_first_of_its_cell():
    figures = {("peak", "rule"): calculated(2.8e11, "B"), ("parameters", ""): calculated(5e10)}
    for metric, size_B in {"peak": 2e11, "reserved": 2.1e11}.items():
        figures[metric, "dry"] = calculated(size_B, "B")
    index = found([made("w", "baseline", figures)]).index
    reserved = index.get("w", "baseline", "reserved", "dry")
    assert divided(reserved, index, "peak").median == 2.1 / 2
    assert divided(reserved, index, "parameters").median == 4.2


TIMES = {
    "baseline": {"a": 2.0, "b": 4.0, "c": 1.0},
    "fast": {"a": 1.0, "b": 1.0, "c": 4.0},
    "partial": {"a": 1.5},
    "baseline_again": {"a": 0.1},  # never counts as the best
}


def test_efficiencies_are_the_best_time_and_the_devices_rate_over_ones_own():
    records = [made("b", "partial", {}, status="wrong_result", reason="output is off")]
    for variant, times in TIMES.items():
        for workload, time in times.items():
            figures = {("time", "warm"): ("s", "measured", (time,))}
            if variant == "baseline" and workload != "c":
                figures["flops", ""] = calculated(8.0)
                figures["matmul_rate", ""] = ("FLOP/s", "measured", (16.0,))
            records.append(made(workload, variant, figures))
    index = ResultIndex(records, load_spec("portability").ranking)
    block = OwnTableBlock(id="portable", title="Portable", function="performance_portability")
    assert application(index, block) == {
        "baseline": {"a": 0.5, "b": 0.25, "c": 1.0},
        "fast": {"a": 1.0, "b": 1.0, "c": 0.25},
        "partial": {"a": pytest.approx(2 / 3), "b": 0.0, "c": 0.0},
    }
    assert architectural(index, block) == {
        "fast": {"a": 0.5, "b": 0.5},
        "baseline": {"a": 0.25, "b": 0.125},
        "partial": {"a": pytest.approx(1 / 3), "b": 0.0},
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


def test_a_name_in_a_figure_is_text_and_never_markup():
    name = 'a <b>&"@ink $x^2$'
    records = [
        r._replace(cell=r.cell._replace(optimization=name)) if r.cell.optimization == "fsdp2" else r
        for r in memory_records()
    ]
    assert name in texts(drawn(found(records), "by_kind"))


def test_nothing_recorded_draws_nothing_and_the_report_states_it(tmp_path):
    records = [r._replace(status="crashed", reason="all of them", measurements=()) for r in memory_records()]
    findings = found(records)
    write_report(tmp_path, findings)
    text = (tmp_path / "report.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Without a value in this run: "))
    for one in findings.blocks:
        if findings.table(one) is None:
            assert one.title in line
            assert f"# {one.title}" not in text
    assert not list((tmp_path / "figures").iterdir())


def figure(folder, suite, block, *records):
    findings = timed_findings(folder, f"  - {{{block}}}\n", list(records) or None, suite=suite)
    return findings.figure(findings.blocks[0])


def tree_of(*arguments):
    made_of = figure(*arguments)
    assert made_of is not None
    return ElementTree.fromstring(made_of.svg)


TIMELINE = ("overlap", "own_figure: timeline, title: C")
LOSSES = ("offload", "own_figure: losses, title: C, workload: small")
SPAN = {("span_begin", "a"): ("s", "emulated", (0.1,)), ("span_end", "a"): ("s", "emulated", (0.2,))}
LOSS = {("loss_by_step", ""): ("1", "measured", (2.0, 1.0))}


@pytest.mark.parametrize(("kind", "figures"), [(TIMELINE, SPAN), (LOSSES, LOSS)])
def test_what_was_wrong_in_one_process_or_has_no_samples_is_not_drawn(kind, figures, tmp_path):
    wrong = made("small", "fast", {}, status="wrong_result", reason="batches are off")
    tree = tree_of(tmp_path, *kind, made("small", "baseline", figures), made("small", "fast", figures), wrong)
    assert tips(tree)
    assert not [said for said in tips(tree) if "fast" in said]
    assert figure(tmp_path, *kind, made("small", "baseline")) is None


def test_each_row_of_the_papers_tables_has_what_the_answer_of_its_claim_has():
    asked = load_answers()
    rows = answer_claims(asked.claims, Findings({}, {}))
    lines = [row for table in paper_tables(asked, rows) for row in table.rows]
    shown = {row[1].text: dict(zip(TABLES_HEADER, (cell.text for cell in row), strict=True)) for row in lines}
    (answer,) = [one for one in rows if one.claim.id == "table_1_7b"]
    row = shown["280GB; 4"]
    assert (row["Row"], row["What its source supports"]) == ("7B", answer.claim.source_says)
    assert (row["Answer"], row["Strength"]) == (f"{answer.answer}: {answer.why}", answer.strength)
    second = next(one.claim for one in asked.claims if one.id == "infiniband_rate")
    assert {"~400GB/s; 4.4s; 9x", second} <= set(shown), "a row with two claims has two lines"


RECORDS = {
    "one": [made("small", "fast", {("time", "warm"): ("s", "measured", (1.0, 2.0))}, suite="one")],
    "other": [made("large", "slow", {("bytes", ""): ("B", "calculated", (3.0,))}, suite="other")],
}


def test_every_sample_of_every_suite_is_a_row_also_without_pyarrow(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    assert str(tmp_path / "measurements.parquet") in write_measurements(tmp_path, RECORDS)
    monkeypatch.setattr("harness.report.results.ENGINE", "no_such_engine")
    assert "throughput-harness[parquet]" in write_measurements(tmp_path, RECORDS)
    parquet = pandas.read_parquet(tmp_path / "measurements.parquet")
    for table in (parquet, pandas.read_csv(tmp_path / "measurements.csv")):
        assert list(table["suite"]) == ["one", "one", "other"]
        assert list(table["value"]) == [1.0, 2.0, 3.0]
        assert list(table["unit"]) == ["s", "s", "B"]
