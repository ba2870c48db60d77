"""The committed reports come out of the committed records, and what they and the answers say is so.

Text and data of all are compared byte for byte, with figures' titles but without drawing them. Of each kind
of figure one is drawn: it is the same where matplotlib is the version that drew the committed one; under
another, each point has to say the same and lead to the same record.
"""

import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import matplotlib.figure
import pytest
from browser import complaints, needs_a_browser, opened

from harness.claims.answers import answer_claims
from harness.claims.paper import load_answers
from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import workloads_of
from harness.config.run import names
from harness.report import gather, write_report
from harness.report.figure import Drawing, Figure
from harness.report.findings import finding
from harness.report.index.suite_index import findings, halves
from harness.report.markdown import answers, arrange, report
from harness.report.spec import OwnBlock
from harness.report.terminal import show
from harness.report.write import effects_csv, verdicts_json, write_index
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"
FOLDERS = sorted(path.parent for path in REFERENCE.rglob("records.jsonl"))
PAGES = ("cost", "memory")
"""Folders whose pages are opened: with controls, and with all kinds of tables and figures."""

SVG = "{http://www.w3.org/2000/svg}"
ID = re.compile(r"[mp][0-9a-f]{10}(?![0-9a-f])")


def points(svg: str) -> list[tuple[str, str]]:
    tree = ElementTree.fromstring(svg)
    return [("".join(a.itertext()).strip(), a.get("href", "")) for a in tree.iter(f"{SVG}a")]


def with_numbered_ids(text: str) -> str:
    """Return `text` with matplotlib's ids numbered: they hash coordinates, whose last bits differ by CPU."""
    numbers: dict[str, int] = {}
    return ID.sub(lambda found: f"id{numbers.setdefault(found[0], len(numbers))}", text)


@pytest.fixture(scope="module")
def judged_folders():
    return [(judged(folder), folder.name) for folder in FOLDERS]


@pytest.fixture
def undrawn(monkeypatch):
    """Let figures have their titles and what they say alone."""
    finished = lambda drawing, title, text, alt: Figure(drawing.id, title, text, alt, "")  # noqa: E731
    monkeypatch.setattr(Drawing, "finish", finished)
    monkeypatch.setattr(matplotlib.figure.Figure, "draw_without_rendering", lambda _: None)


@pytest.mark.parametrize("at", range(len(FOLDERS)), ids=[folder.name for folder in FOLDERS])
def test_the_committed_report_comes_out_of_the_committed_records(at, judged_folders, undrawn):
    folder, (data, _) = FOLDERS[at], judged_folders[at]
    layout = arrange(data)
    made = {"report.md": report(data, layout), "effects.csv": effects_csv(data)}
    made["verdicts.json"] = verdicts_json(data.claims, data.verdicts)
    for name, text in made.items():
        kept = (folder / name).read_text() if (folder / name).exists() else ""
        assert text == kept, f"python -m harness from_results={folder.relative_to(ROOT)}"
    assert {path.name for path in (folder / "figures").glob("*")} == set(layout.figures)
    left_out = {"report.html", "measurements.csv", "benchmark.json", "records.jsonl", "plan.json", "figures"}
    others = {path.name for path in folder.iterdir() if not path.name.startswith("environment-")}
    assert others - left_out == {name for name, text in made.items() if text}


def test_a_figure_of_each_kind_is_the_committed_one(judged_folders):
    drawn = set()
    for data, name in sorted(judged_folders, key=lambda one: len(one[0].records)):
        for block in data.blocks:
            kind = (data.suite, block.function) if isinstance(block, OwnBlock) else type(block)
            kept = REFERENCE / name / "figures" / f"{block.id}.svg"
            if kind in drawn or not kept.exists():
                continue
            figure, text = data.figure(block).file(), kept.read_text()
            if f'data-matplotlib="{matplotlib.__version__}"' in text:
                assert with_numbered_ids(figure) == with_numbered_ids(text), kept
            assert points(figure) == points(text), kept
            drawn.add(kind)
    assert len(drawn) > 12


@pytest.fixture(scope="module")
def made(judged_folders, tmp_path_factory):
    folder, asked = tmp_path_factory.mktemp("reference"), load_answers()
    found = (of(judged_folders, asked.methods) for of in (findings, halves))
    write_index(folder, asked, answer_claims(asked.claims, *found), judged_folders)
    for data, name in judged_folders:
        if name in PAGES:
            write_report(folder / name, data)
    return folder


def test_the_committed_answers_and_index_come_out_of_the_committed_results(made):
    for name in ("index.md", "tables.md", "answers.csv", "figures/answers.svg"):
        assert (REFERENCE / name).read_text() == (made / name).read_text(), (
            "python -m harness from_results=results/reference"
        )


@pytest.mark.parametrize("left", ["without the baseline", "the baseline alone", "every second record"])
def test_whatever_a_killed_sweep_lacks_its_report_has_an_answer(judged_folders, left):
    for data, name in judged_folders:
        if data.suite != name:
            continue
        kept = {
            "without the baseline": [one for one in data.records if one.cell.optimization != "baseline"],
            "the baseline alone": [one for one in data.records if one.cell.optimization == "baseline"],
            "every second record": list(data.records)[::2],
        }[left]
        if kept:
            part = replace(data, records=kept[:60], verdicts=[])
            assert all(answers(part)), name
            assert finding(part), name


def test_the_end_of_a_sweep_fits_a_screen(judged_folders, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # of the process that runs the tests
    for data, _ in judged_folders[::4]:
        out = io.StringIO()
        show(data, Path("results/here/report.html"), out)
        lines = out.getvalue().splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 100
        assert "results/here/report.html" in out.getvalue()


def renamed(records, workload):
    return [
        one._replace(cell=one.cell._replace(workload="mine"))
        for one in records
        if one.cell.workload == workload
    ]


@pytest.mark.parametrize("suite", [name for name in names("suite") if (REFERENCE / name).is_dir()])
def test_a_users_own_workload_is_wherever_a_workload_of_the_suite_is(suite):
    kept = [record for record in read_records(REFERENCE / suite) if record.cell.suite == suite]
    usual = kept[0].cell.workload
    assert usual in workloads_of(suite)
    data = gather(suite, [*kept, *renamed(kept, usual)], [], REFERENCE / suite)
    shown = {block.id: data.index.names("workload", block.where) for block in data.blocks}
    of_usual = {block for block, workloads in shown.items() if usual in workloads}
    assert of_usual <= {block for block, workloads in shown.items() if workloads[:1] == ["mine"]}
    assert any("mine" in workloads for workloads in shown.values())


@needs_a_browser
def test_pages_of_committed_results_fit_every_window(made, tmp_path):
    pages = {str(path.relative_to(made)).replace("/", "_"): path for path in made.rglob("*.html")}
    assert len(pages) == len(PAGES) + 2  # the answers, and the paper's tables
    assert list(complaints(opened(tmp_path, {name: path.read_text() for name, path in pages.items()}))) == []
