"""The committed reports come out of the committed records, and what they and the answers say is so.

Text and data of all are compared byte for byte, with figures' titles but without drawing them. Of each kind
of figure one is drawn: it is the same where matplotlib is the version that drew the committed one; under
another, each point has to say the same and lead to the same record.
"""

import io
import math
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import matplotlib.figure
import pytest
from browser import complaints, needs_a_browser, opened

from harness.claims.answers import FEWEST, MISQUOTED, answer_claims
from harness.claims.evidence import Findings
from harness.claims.paper import load_answers
from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import workloads_of
from harness.config.run import names
from harness.report import gather, write_report
from harness.report.comparison import compared
from harness.report.figure import Drawing, Figure
from harness.report.findings import answer_block, finding, what_pays
from harness.report.index.answers_page import Answers, sentences
from harness.report.index.suite_index import findings, halves
from harness.report.markdown import answers, arrange, report
from harness.report.spec import EffectsBlock, OwnBlock, TableBlock
from harness.report.terminal import LINES, WIDTH, show
from harness.report.write import effects_csv, verdicts_json, write_index
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"
FOLDERS = sorted(path.parent for path in REFERENCE.rglob("records.jsonl"))
PAGES = ("cost", "memory")
"""Folders whose pages are opened: with controls, and with all kinds of tables and figures."""

SVG = "{http://www.w3.org/2000/svg}"
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


@pytest.fixture(scope="module")
def judged_folders():
    return [(judged(folder), folder.name) for folder in FOLDERS]


@pytest.fixture(scope="module")
def hour():
    """Return the results of one hour: of all suites, by a second run."""
    folders = sorted(path.parent for path in (ROOT / "results/hour").glob("*/plan.json"))
    return [(judged(folder), folder.name) for folder in folders]


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
def made(judged_folders, answered, tmp_path_factory):
    """Return a folder with the pages over all results, and those of two."""
    folder = tmp_path_factory.mktemp("reference")
    write_index(folder, ASKED, answered, judged_folders)
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
            part = replace(data, records=kept[:200], verdicts=[])
            assert all(answers(part)), name
            assert finding(part), name


@pytest.mark.parametrize("at", range(len(FOLDERS)), ids=[folder.name for folder in FOLDERS])
def test_the_end_of_a_sweep_fits_a_screen(at, judged_folders, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # of the process that runs the tests
    data, _ = judged_folders[at]
    out = io.StringIO()
    show(data, Path("results/here/report.html"), out)
    lines = out.getvalue().splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert "results/here/report.html" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_the_first_sentence_names_the_baseline_that_it_compares_with(judged_folders, hour):
    for data, name in [*judged_folders, *hour]:
        block, told = answer_block(data), what_pays(data)
        base, left_out = data.spec.name("optimization", "baseline"), data.spec.answer.leave_out
        if block and told:
            workload = data.index.names("workload", block.where, block.metric)[0]
            compares = any(
                compared(data.index, workload, one, block.pairing)
                for one in data.index.names("optimization", block.where)
                if not any(fnmatchcase(one, left) for left in ("baseline", "baseline_again", *left_out))
            )
            assert base in told[0] or not compares, (name, told[0])
        if not data.spec.answer.finding and told:
            assert (" as fast" in finding(data)) <= (base in finding(data)), (name, finding(data))


def renamed(records, workload):
    """Return the records of a workload under a name that the suite does not have."""
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


def test_a_users_own_workload_is_preferred_and_alone_in_each_table_once():
    kept = read_records(REFERENCE / "kernels")
    data = gather("kernels", [*kept, *renamed(kept, "step_5m_128")], [], REFERENCE / "kernels")
    effects = next(block for block in data.blocks if isinstance(block, EffectsBlock))
    assert "mine" in effects.title
    assert effects.where["workload"] == "mine"
    alone = renamed(read_records(REFERENCE / "congestion"), "incast_16")
    data = gather("congestion", alone, [], REFERENCE / "congestion")
    titles = [block.title for block in data.blocks if isinstance(block, TableBlock)]
    assert "Queue and pauses: mine" in titles
    assert len(titles) == len(set(titles))


@pytest.fixture(scope="module")
def found(judged_folders):
    """Return the findings of the committed results, and of both halves of their processes."""
    return findings(judged_folders, ASKED.methods), halves(judged_folders, ASKED.methods)


@pytest.fixture(scope="module")
def answered(found):
    return answer_claims(ASKED.claims, *found)


def value(band, inside):
    """Return a value well inside a band, or well outside."""
    low, high = band
    if math.isinf(high):
        return 1.5 * low if inside else low / 3
    within = high / 1.5 if low <= 0 else math.sqrt(low * high)
    return within if inside else 3 * high


def moved(results, inside):
    """Return the findings with every value on one side of its claim's band, of three workloads each."""

    def of(claim, verdicts):
        new = value(claim.accepted, inside)
        interpretations, made = [], []
        for one, verdict in zip(claim.interpretations, verdicts, strict=True):
            for i in range(FEWEST):
                name = f"{one.name} {i}"
                interpretations.append(one._replace(name=name, workload=f"{one.workload} {i}"))
                values = {} if verdict.ours is None else {"ours": new, "low": new, "high": new, "steps": ()}
                made.append(replace(verdict, interpretation=name, **values))
        return replace(claim, interpretations=tuple(interpretations)), made

    return replace(results, judged={name: of(*pair) for name, pair in results.judged.items()})


def with_public(claim, inside):
    """Return the claim with three published values of each record on one side of its band."""
    if claim.band is None:
        return claim
    new = value(claim.band, inside)
    records = tuple(
        replace(one, values={f"{name} {i}": new for name in one.values for i in range(FEWEST)})
        for one in claim.public
    )
    return replace(claim, public=records)


def test_made_up_records_turn_each_answer(found, answered):
    """Each answer by the committed results could have been another."""
    sides = {inside: [moved(one, inside) for one in (found[0], *found[1])] for inside in (True, False)}
    for claim, today in zip(ASKED.claims, answered, strict=True):
        counted = any(one.context or one.decides for one in today.evidence)
        published = claim.band and any(one.values and not one.own for one in claim.public)
        if not counted and not published:
            assert today.answer in ("no evidence", MISQUOTED), claim.id
            continue
        words = {}
        for inside, (results, *parts) in sides.items():
            claimed = replace(with_public(claim, inside), misquoted="")
            (row,) = answer_claims([claimed], results, parts)
            words[inside] = row.answer
        assert words[True] in ("confirmed", "plausible"), claim.id
        assert words[False] in ("contradicted", "implausible", "undecided"), claim.id


def test_two_runs_do_not_give_a_claim_two_answers(answered, hour):
    """The results of one hour may leave open what the committed ones decide; they never say otherwise."""
    again = answer_claims(ASKED.claims, findings(hour, ASKED.methods), halves(hour, ASKED.methods))
    open_ = {"undecided", "no evidence"}
    for one, other in zip(answered, again, strict=True):
        assert one.answer == other.answer or open_ & {one.answer, other.answer}, one.claim.id


def test_no_committed_answer_rests_on_emulation_or_another_device(answered):
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


def test_the_dry_runs_error_is_that_of_its_records(answered):
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


def test_predicted_gains_stand_next_to_their_error_or_to_why_it_is_not_known(answered):
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


def test_the_page_opens_with_sentences_that_its_answers_bear_out(answered):
    told = sentences(Answers(ASKED, answered, None, []))
    assert len(told) == len(ASKED.sentences) >= 4
    turned = [replace(row, answer="plausible") for row in answered]
    assert len(sentences(Answers(ASKED, turned, None, []))) < len(told)
    without = sentences(Answers(ASKED, answer_claims(ASKED.claims, Findings({}, {})), None, []))
    assert not [text for text in without if "H200" in text or "175 B" in text]


@needs_a_browser
def test_pages_of_committed_results_fit_every_window(made, tmp_path):
    pages = {str(path.relative_to(made)).replace("/", "_"): path for path in made.rglob("*.html")}
    assert len(pages) == len(PAGES) + 2  # the answers, and the paper's tables
    assert list(complaints(opened(tmp_path, {name: path.read_text() for name, path in pages.items()}))) == []
