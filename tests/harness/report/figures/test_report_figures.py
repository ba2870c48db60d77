"""Figures: drawn to scale, of the values recorded, readable in light and dark, each point with its record."""

from xml.etree import ElementTree

import pytest
from reporting import drawn, found, read_page, texts, tips
from synthetic import made, memory_records
from timed import timed_findings

from harness.report import write_report


def test_a_name_in_a_figure_is_text_and_never_markup(tmp_path):
    name = 'a <b>&"@ink $x^2$'
    records = [
        r._replace(cell=r.cell._replace(optimization=name)) if r.cell.optimization == "fsdp2" else r
        for r in memory_records()
    ]
    assert name in texts(drawn(found(records), "by_kind"))
    assert read_page(write_report(tmp_path, found(records)).read_text()).open == []


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
