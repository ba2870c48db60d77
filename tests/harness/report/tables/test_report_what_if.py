"""Controls over recorded combinations, and curves by samples, on records made by hand."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from reporting import texts, tips
from synthetic import made
from timed import timed_findings

from harness.config.validation import ConfigError
from harness.records import Record
from harness.report import write_report
from harness.report.spec import load_spec
from harness.report.tables import Table

COST = {"1": {"a": 10.0, "b": 20.0}, "2": {"a": 30.0, "b": 40.0}}
WHAT_IF = """  - what_if: w
    title: W
    metrics: {cost: {title: Cost, unit: "1"}}
    controls:
      rate: {title: Rate, start: "2", names: {"1": slow, "2": fast}}
      place: {title: Place, start: a}
"""


def combinations() -> list[Record]:
    figures = {
        ("cost", f"rate={rate}, place={place}"): ("1", "calculated", (value,))
        for rate, of in COST.items()
        for place, value in of.items()
    }
    return [made("small", "baseline", {**figures, ("cost", "other"): ("1", "calculated", (99.0,))})]


def table_of(folder: Path, records: list[Record]) -> Table:
    findings = timed_findings(folder, WHAT_IF, records)
    table = findings.table(findings.blocks[0])
    assert table is not None
    return table


def test_the_table_changes_one_input_at_a_time(tmp_path: Path) -> None:
    table = table_of(tmp_path, combinations())
    shown = {row[0].text: row[1].text.split()[0] for row in table.rows}
    assert shown == {"nothing": "30", "Rate: slow": "10", "Place: b": "40"}
    assert {row[1].cell for row in table.rows} == {"invented-small-baseline-0"}


def test_the_controls_reach_every_combination_and_each_text_is_a_record(tmp_path: Path) -> None:
    picker = table_of(tmp_path, combinations()).picker
    assert picker is not None
    assert [control.title for control in picker.controls] == ["Rate", "Place"]
    assert picker.controls[0].choices == (("rate=1", "slow"), ("rate=2", "fast"))
    assert picker.start == ", ".join(control.start for control in picker.controls) == "rate=2, place=a"
    expected = {f"rate={r}, place={p}": (f"{v:.0f} ᶜ",) for r, of in COST.items() for p, v in of.items()}
    assert dict(picker.entries) == expected


def test_numbers_are_in_their_own_order(tmp_path: Path) -> None:
    figures = {("cost", f"rate={r}, place=a"): ("1", "calculated", (1.0,)) for r in ("10", "2", "1e+2")}
    picker = table_of(tmp_path, [made("small", "baseline", figures)]).picker
    assert picker is not None
    assert [value for value, _ in picker.controls[0].choices] == ["rate=2", "rate=10", "rate=1e+2"]


def test_without_the_start_there_is_nothing_to_show(tmp_path: Path) -> None:
    figures = {("cost", "rate=1, place=a"): ("1", "calculated", (1.0,))}
    table = table_of(tmp_path, [made("small", "baseline", figures)])
    assert (table.rows, table.picker) == ((), None)


def test_the_page_holds_the_values_and_the_markdown_the_table(tmp_path: Path) -> None:
    findings = timed_findings(tmp_path, WHAT_IF, combinations())
    page = write_report(tmp_path / "out", findings)
    text = page.read_text()
    data = re.search(r'<script type="application/json">(.*?)</script>', text)
    assert data
    entries = json.loads(data[1])
    assert {key: value[0].split()[0] for key, value in entries.items()}["rate=1, place=b"] == "20"
    chosen = re.findall(r'<option value="([^"]+)" selected>', text)
    assert ", ".join(map(html.unescape, chosen)) in entries
    assert "| Rate: slow |" in (tmp_path / "out" / "report.md").read_text()


CURVES = "  - {own_figure: by_compute, title: C, where: {workload: small}}\n"


def curve_records() -> list[Record]:
    def samples(
        ys: tuple[float, ...], method: str
    ) -> dict[tuple[str, str], tuple[str, str, tuple[float, ...]]]:
        xs = tuple(10.0 ** (24 + i) for i in range(len(ys)))
        return {
            ("training_compute", method): ("1", "calculated", xs),
            ("utilization", method): ("1", "calculated", ys),
        }

    base = samples((0.5, 0.4, 0.2), "curve") | samples((0.3, 0.2), "5 %") | samples((0.6, 0.5, 0.4), "95 %")
    dot = {
        ("training_compute", "published"): ("1", "published", (3e25,)),
        ("utilization", "published"): ("1", "published", (0.35,)),
    }
    return [
        made("small", "baseline", base),
        made("small", "fast", samples((0.6, 0.5, 0.3), "curve")),
        made("gpt3_512", "baseline", dot),
    ]


def drawn(folder: Path, records: list[Record]) -> ElementTree.Element | None:
    findings = timed_findings(folder, CURVES, records, suite="limits")
    figure = findings.figure(findings.blocks[0])
    return None if figure is None else ElementTree.fromstring(figure.svg)


def test_each_sample_is_a_point_and_band_dots_and_lines_are_named(tmp_path: Path) -> None:
    tree = drawn(tmp_path, curve_records())
    assert tree is not None
    said = tips(tree)
    assert sum(tip.startswith("fast, ") for tip in said) == 3
    assert "fast, 1.0\u00a0×\u00a010²⁶: 0.300" in said
    assert "gpt3_512, measured: 0.350" in said
    shown = texts(tree)
    assert {"shaded: 90 % of draws", "○ measured", "fast", "claimed: falls", "10²⁵"} <= set(shown)


def test_without_two_places_there_is_no_figure(tmp_path: Path) -> None:
    assert (
        drawn(tmp_path, [made("small", "baseline", {("utilization", "curve"): ("1", "calculated", (0.5,))})])
        is None
    )


WITHIN = """  - {errors: e, title: E, metric: error, headline: second, within: 0.1}
"""
STATES = """answer:
  states:
    - text: "It is {} of {}."
      values:
        - {workload: small, optimization: baseline, metric: cost, unit: "1"}
        - {workload: small, optimization: baseline, metric: whole, unit: "1"}
    - {text: "Lost {}.", values: [{workload: small, optimization: baseline, metric: absent}]}
"""


def test_an_answer_says_how_many_are_within_and_states_recorded_values(tmp_path: Path) -> None:
    from harness.report.findings import what_pays

    figures = {
        ("error", "first"): ("1", "calculated", (0.01,)),
        ("error", "second"): ("1", "calculated", (-0.3,)),
    }
    stated = {("cost", ""): ("1", "calculated", (2.0,)), ("whole", ""): ("1", "calculated", (3.0,))}
    records = [
        made("small", "baseline", {**figures, **stated}),
        made("large", "baseline", {("error", "second"): ("1", "calculated", (0.1,))}),
    ]
    findings = timed_findings(tmp_path, WITHIN, records)
    (tmp_path / "s.yaml").write_text(f"title: t\nquestion: q\n{STATES}blocks: []\n")
    answer = load_spec("s", folder=tmp_path).answer
    findings = type(findings)(**{**vars(findings), "spec": findings.spec._replace(answer=answer)})
    first, second, third = what_pays(findings)
    assert first == (
        "second: not all: 1 of 2 published values are met within 10 %; median error 20 %, worst −30 %."
    )
    assert second.startswith("first: all of 1 published value is met within 10 %; median error 1 %")
    assert third == "It is 2 ᶜ of 3 ᶜ."


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            "{what_if: a, title: b, metrics: {}, controls: {k: {title: t}}}",
            "missing required field `start` - at `$.controls[...]`",
        ),
        (
            "{what_if: a, title: b, metrics: {m: {}}, controls: {}}",
            "missing required field `title` - at `$.metrics[...]`",
        ),
    ],
)
def test_a_mistake_is_one_line(block: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"title: t\nquestion: q\nblocks:\n  - {block}\n")
    with pytest.raises(ConfigError) as error:
        load_spec("s", folder=tmp_path)
    assert "\n" not in str(error.value)
    assert said in str(error.value)


def test_a_state_has_as_many_places_as_values(tmp_path: Path) -> None:
    text = "answer: {states: [{text: none, values: [{workload: a, optimization: b, metric: c}]}]}"
    (tmp_path / "s.yaml").write_text(f"title: t\nquestion: q\n{text}\nblocks: []\n")
    with pytest.raises(ConfigError, match=r"as many .* values \(1\) - at `\$.answer.states\[0\]`"):
        load_spec("s", folder=tmp_path)
