"""The committed reports come out of the committed records.

Text, tables and data are compared byte for byte. So are figures, where matplotlib is the version that drew
the committed ones; under another, each point has to say the same and lead to the same record.
"""

import re
from dataclasses import replace
from xml.etree import ElementTree

import browser
import matplotlib
import pytest
from browser import complaints, needs_a_browser, opened

from harness.claims.answers import AnsweredClaim, answer_claims
from harness.claims.evidence import Findings
from harness.claims.paper import load_answers
from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.report import write_index, write_report
from harness.report.findings import finding
from harness.report.index.answers_page import Answers, index_page, sentences
from harness.report.index.forest import forest
from harness.report.index.suite_index import findings, halves
from harness.report.markdown import answers
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"
FOLDERS = sorted(path.parent for path in REFERENCE.rglob("records.jsonl"))
LEFT_OUT = {"report.html", "measurements.csv", "benchmark.json"}
"""What a report writes again from the records, and git ignores."""
SVG = "{http://www.w3.org/2000/svg}"
FIGURE = re.compile(r"<figure.*?</figure>", re.DOTALL)
ID = re.compile(r"[mp][0-9a-f]{10}(?![0-9a-f])")


ASKED = load_answers()


def points(svg: str) -> list[tuple[str, str]]:
    """Return what each point of a figure says and leads to, in the order drawn."""
    tree = ElementTree.fromstring(svg)
    return [("".join(a.itertext()).strip(), a.get("href", "")) for a in tree.iter(f"{SVG}a")]


def with_numbered_ids(text: str) -> str:
    """Return `text` with matplotlib's ids numbered: they hash coordinates, whose last bits differ by CPU."""
    numbers: dict[str, int] = {}
    return ID.sub(lambda found: f"id{numbers.setdefault(found[0], len(numbers))}", text)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def of_the_run(name):
    return name in ("records.jsonl", "plan.json") or name.startswith("environment-")


def same(made: str, kept: str, name: str) -> bool:
    drawn_by = set(re.findall(r'data-matplotlib="([^"]+)"', kept)) or {matplotlib.__version__}
    if drawn_by == {matplotlib.__version__}:
        return with_numbered_ids(made) == with_numbered_ids(kept)
    if name.endswith(".svg"):
        return points(made) == points(kept)
    return FIGURE.sub("", made) == FIGURE.sub("", kept)


@pytest.fixture(scope="module")
def judged_folders():
    return [(judged(folder), folder.name) for folder in FOLDERS]


@pytest.fixture(scope="module")
def made(judged_folders, tmp_path_factory):
    """Return a folder with the report of each committed run, by name, and the pages over all of them."""
    folder = tmp_path_factory.mktemp("reference")
    for data, name in judged_folders:
        write_report(folder / name, data)
    write_index(folder, judged_folders)
    return folder


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_committed_report_comes_out_of_the_committed_records(folder, made):
    of_report = files(made / folder.name) - LEFT_OUT
    assert {name for name in files(folder) - LEFT_OUT if not of_the_run(name)} == of_report
    for name in of_report:
        kept = (folder / name).read_text()
        assert same((made / folder.name / name).read_text(), kept, name), f"{name} differs"


def test_the_committed_answers_and_index_come_out_of_the_committed_results(made):
    for name in ("index.md", "tables.md", "answers.csv", "figures/answers.svg"):
        assert (REFERENCE / name).read_text() == (made / name).read_text(), (
            "python -m harness from_results=results/reference"
        )


@pytest.mark.parametrize("left", ["without the baseline", "the baseline alone", "every second record"])
def test_whatever_a_killed_sweep_lacks_its_report_has_an_answer(judged_folders, left):
    for data, name in judged_folders:
        kept = {
            "without the baseline": [one for one in data.records if one.cell.optimization != "baseline"],
            "the baseline alone": [one for one in data.records if one.cell.optimization == "baseline"],
            "every second record": list(data.records)[::2],
        }[left]
        if kept:
            part = replace(data, records=kept, verdicts=[])
            assert all(answers(part)), name
            assert finding(part), name


@pytest.fixture(scope="module")
def answered(judged_folders) -> list[AnsweredClaim]:
    return answer_claims(
        ASKED.claims, findings(judged_folders, ASKED.methods), halves(judged_folders, ASKED.methods)
    )


def test_no_committed_answer_rests_on_emulation_or_another_device(
    answered: list[AnsweredClaim],
) -> None:
    """By the records themselves: origin of the metric, device of the cell."""
    records = {
        record.cell.id: record
        for folder in (REFERENCE).glob("*/plan.json")
        for record in read_records(folder.parent)
    }
    deciding = [
        (verdict, evidence.strength, {one.origin for one in records[verdict.cell].measurements})
        for row in answered
        if row.answer in ("confirmed", "partly", "contradicted")
        for evidence in row.evidence
        if evidence.decides
        for verdict in evidence.verdicts
    ]
    assert {strength for _, strength, _ in deciding} == {"A", "B"}
    for verdict, strength, origins in deciding:
        assert verdict.origin in origins
        assert (verdict.origin == "simulated") <= (strength == "B"), verdict
        assert strength == "A" or verdict.origin in ("simulated", "calculated"), verdict
        assert verdict.origin != "emulated"
        if strength == "B":
            assert records[verdict.cell].conditions["device"] == "cuda"


def test_the_dry_runs_error_is_that_of_its_records(answered: list[AnsweredClaim]) -> None:
    """Of peaks with which nothing was corrected, all of allocated bytes; of reserved ones none is known."""
    errors = [
        sample
        for record in read_records(ROOT / "results/reference/memory_published")
        if "_adapter" in record.cell.workload and record.conditions["kind"] == "allocated"
        for one in record.measurements
        if (one.metric, one.method) == ("relative_error", "fake_step")
        for sample in one.samples
    ]
    assert len(errors) == 12
    off = f"at most {100 * max(map(abs, errors)):.2g} % off on {len(errors)} published peaks"
    by_id = {row.claim.id: row for row in answered}
    assert off in by_id["table_1_175b"].why
    counts = [one for one in by_id["table_1_175b"].evidence if one.group == "GPUs of 80 GB"]
    assert counts
    assert all(one.strength == "C" and "whose error is not known" in one.method for one in counts)


def test_predicted_gains_stand_next_to_their_error_or_to_why_it_is_not_known(
    answered: list[AnsweredClaim],
) -> None:
    """FP8 decides at its largest error, GB200 does not; of a link, overlap and ZeRO-3 nothing is known."""
    of = {one.claim: one for row in answered for one in row.evidence if one.claim.startswith("step_gains/")}
    errors: dict[str, list[float]] = {}
    for record in read_records(REFERENCE / "step_time"):
        for one in record.measurements:
            if record.cell.workload == "every" and one.method == "left_out":
                errors[one.metric] = [abs(sample) for sample in one.samples]
    fp8, gpu = of["step_gains/fp8_no_order_of_magnitude"], of["step_gains/gb200_pays_off"]
    for found, kind in ((fp8, "precision"), (gpu, "gpu")):
        assert found.strength == "B"
        assert f"at most {100 * max(errors[f'ratio_error/{kind}']):.2g} % off" in found.method
    assert fp8.high * (1 + 3 * max(errors["ratio_error/precision"])) < 10
    assert set(fp8.outcomes) == {"inside"}
    assert gpu.high * (1 - 3 * max(errors["ratio_error/gpu"])) < 1.6
    assert set(gpu.outcomes) == {"undecided"}
    for name in ("table_3_infiniband", "tensor_overlap", "zero_3_communication"):
        assert of[f"step_gains/{name}"].strength == "C"
        assert "whose error is not known" in of[f"step_gains/{name}"].method


def test_the_page_opens_with_sentences_that_its_answers_bear_out(
    answered: list[AnsweredClaim],
) -> None:
    told = sentences(Answers(ASKED, answered, None, []))
    assert len(told) == len(ASKED.sentences) >= 4
    turned = [replace(row, answer="plausible") for row in answered]
    assert len(sentences(Answers(ASKED, turned, None, []))) < len(told)
    without = sentences(Answers(ASKED, answer_claims(ASKED.claims, Findings({}, {})), None, []))
    assert not [text for text in without if "H200" in text or "175 B" in text]


def test_the_figure_has_each_claim_with_a_band_and_values(answered: list[AnsweredClaim]) -> None:
    figure = forest(answered)
    assert figure is not None
    assert figure.svg == forest(answered).svg  # type: ignore[union-attr]
    for row in answered:
        if row.claim.band and row.evidence and row.answer == "contradicted":
            assert f">{row.answer}, {row.strength}<" in figure.svg
    assert forest([]) is None


@needs_a_browser
def test_pages_of_committed_results_fit_every_window(made, tmp_path):
    pages = {str(path.relative_to(made)).replace("/", "_"): path for path in made.rglob("*.html")}
    assert len(pages) == len(FOLDERS) + 2  # the answers, and the paper's tables
    assert list(complaints(opened(tmp_path, {name: path.read_text() for name, path in pages.items()}))) == []


def test_no_row_of_the_page_has_the_id_of_a_claim_a_workload_or_a_variant(
    answered: list[AnsweredClaim], judged_folders
) -> None:
    claims = {f"{data.suite}/{one.id}": one for data, _ in judged_folders for one in data.claims}
    used = [claims[name] for row in answered for name in (*row.claim.judged, *row.claim.related)]
    ids = {name for row in answered for name in (*row.claim.judged, *row.claim.related)}
    ids |= {one.workload for claim in used for one in claim.interpretations if "_" in one.workload}
    ids |= {name for claim in used for one in claim.interpretations for name in one.variants if "_" in name}

    def ids_in(text: str) -> list[str]:
        words = re.findall(r"[\w./]+", re.sub(r"<[^>]*>", " ", text))
        return [word for word in words if word in ids]

    page = index_page(Answers(ASKED, answered, None, []))
    assert ids_in(page[page.index("<body>") :]) == []
    assert ids_in("<td>no record of zero3_offload_params on gpu_32gb, and more") == [
        "zero3_offload_params",
        "gpu_32gb",
    ]


OUTSIDE = """addEventListener("load", () => {
  const rows = [...document.querySelectorAll("details.answered")];
  const names = [".claim-words", ".answer", ".found"];
  const parts = rows.flatMap((row) => names.map((one) => row.querySelector(one)));
  const outside = (part) => {
    if (!part || !part.textContent.trim()) return true;
    const range = document.createRange();
    range.selectNodeContents(part);
    const boxes = [...range.getClientRects()];
    return !boxes.length || boxes.some((box) => box.left < 0 || box.right > innerWidth);
  };
  parent.postMessage({ page: name, window: innerWidth, folded: 0, open: 0, rows: rows.length,
    overlaps: parts.filter(outside).map((part) => (part ? part.textContent.trim() : "missing")) }, "*");
})"""
"""Reports which claims, answers and ranges of the page of answers are not inside the window."""

PHONE = 390


@needs_a_browser
def test_claim_answer_and_found_are_inside_the_window_of_a_phone(answered, tmp_path, monkeypatch):
    """A long word is broken into lines; where it may not be, the check finds it outside."""
    monkeypatch.setattr(browser, "WIDTHS", (PHONE,))
    monkeypatch.setattr(browser, "CHECK", OUTSIDE)
    page, word = index_page(Answers(ASKED, answered, None, [])), "overlong" * 12
    first = re.compile(r'(<b class="claim-words")>[^<]*')
    pages = {
        "made": page,
        "long": first.sub(rf"\1>{word}", page, count=1),
        "unbroken": first.sub(rf'\1 style="white-space: nowrap">{word}', page, count=1),
    }
    reports = opened(tmp_path, pages)
    assert {one["rows"] for one in reports} == {len(ASKED.claims)}
    assert list(complaints(reports)) == [f"unbroken at {PHONE} px: {[word]}"]


def test_a_figure_of_another_version_is_compared_by_its_points():
    one, other = (
        f'<svg xmlns="http://www.w3.org/2000/svg" data-matplotlib="0.{minor}"><a href="#r-1">'
        f'<use x="{minor}"/><title>fast: 2×</title></a></svg>'
        for minor in (1, 2)
    )
    assert same(one, other, "a.svg")
    assert not same(one, other.replace("2×", "3×"), "a.svg")
    assert not same(one, other.replace("#r-1", "#r-2"), "a.svg")
    assert not same("text", "other", "report.md")


def test_there_is_a_reference():
    assert FOLDERS
