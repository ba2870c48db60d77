"""The report: every figure as recorded and marked, none where there is none, the same bytes each time."""

from __future__ import annotations

import io
import json
import os
import random
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import memory_records

from harness.claims import load_claims
from harness.fields import ConfigError
from harness.judge import judge
from harness.records import Measurement, Record, Status, measurement
from harness.report import figures, gather, write_all, write_report
from harness.report.effects import meaning
from harness.report.errors import error_rows
from harness.report.findings import Findings, table
from harness.report.frame import Frame
from harness.report.glance import glance
from harness.report.lines import lines
from harness.report.spec import KINDS, REPORTS, Block, load_spec
from harness.report.svg import COLOURS, log_ticks, round_ticks, symmetric
from harness.report.tables import Table
from harness.report.terminal import fitting, show
from harness.report.units import LEGEND, ORIGIN_MARKS, bare, human, in_unit, number

MARKS = "".join(ORIGIN_MARKS.values())


def found(records: list[Record] | None = None, folder: Path = Path()) -> Findings:
    records = memory_records() if records is None else records
    return gather("memory", records, judge(load_claims("memory"), records), folder)


def block(findings: Findings, id: str) -> Block:
    return next(one for one in findings.blocks(findings.frame) if one.id == id)


def made_table(id: str, records: list[Record] | None = None) -> Table:
    findings = found(records)
    made = table(block(findings, id), findings, findings.frame)
    assert made is not None
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# Units


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (112e9, "B", "112 GB"),
        (7e12, "B", "7,000 GB"),
        (45e12, "B", "45 TB"),
        (999.6e6, "B", "1,000 MB"),
        (512.0, "B", "512 B"),
        (0.0, "B", "0 B"),
        (0.0123, "s", "12.3 ms"),
        (90.0, "s", "1.50 min"),
        (88.0, "1", "88"),
        (1234567.0, "1", "1,234,567"),
        (0.5, "1", "0.500"),
        (-2.5, "1", "−2.50"),
    ],
)
def test_figures_as_people_read_them(value: float, unit: str, expected: str) -> None:
    assert human(value, unit) == expected


@given(st.floats(1e-6, 1e15))
def test_a_shown_number_is_the_value_to_three_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@given(st.floats(-100, 100).filter(lambda share: abs(share) >= 1e-12))
def test_a_signed_percentage_keeps_sign_and_size(share: float) -> None:
    text = bare(share, "1", "%", signed=True)
    assert text[0] == ("+" if share > 0 else "−")
    digits = 0.51 if abs(share) < 1.1e-5 else 0.051
    assert float(text[1:].replace(",", "")) == pytest.approx(abs(100 * share), rel=digits)


def test_a_unit_that_is_none_of_the_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: B, kB"):
        in_unit(1.0, "B", "s")


# Tables


def recorded(records: list[Record], workload: str, arm: str, metric: str, method: str) -> float:
    """The figure, asked of the records themselves."""
    (record,) = [r for r in records if (r.cell.workload, r.cell.optimization) == (workload, arm)]
    one = measurement(record, metric, method)
    assert one is not None
    return statistics.median(one.samples)


def test_table_1_shows_the_papers_figures_beside_the_records() -> None:
    records = memory_records()
    made = made_table("table_1", records)
    row = next(row for row in made.rows if row[0].text.startswith("7B"))
    shown = dict(zip(made.heads, (cell.text for cell in row), strict=True))
    assert shown["The paper"] == "280 (4)"
    peak_B = recorded(records, "llama_7b", "mixed_flash", "peak_memory", "fake_step")
    assert shown["Full step, flash"] == f"{peak_B / 1e9:.0f} ({-(-peak_B // 80e9):.0f}) ˢ"
    assert shown["40 B/param"].endswith("(4) ᶜ")
    assert [row[0].text for row in made.rows] == ["1B (TinyLlama)", "7B (Llama-2)", "175B (GPT-3)"]


def test_every_figure_from_a_record_carries_its_origin() -> None:
    findings = found()
    for one in findings.blocks(findings.frame):
        made = table(one, findings, findings.frame)
        for row in made.rows if made else ():
            for cell in row:
                if cell.cell and not cell.look and made:
                    assert cell.text[-1] in MARKS, (made.id, cell)


def test_a_method_that_was_not_recorded_is_a_footnote_and_no_number() -> None:
    made = made_table("table_1")
    at = made.heads.index("DeepSpeed, ZeRO-2")
    for row in made.rows:
        assert re.fullmatch(r"– \[\d+\]", row[at].text)
        assert row[at].cell == ""
    assert any("deepspeed" in note for note in made.notes)


def test_a_remark_of_the_suite_is_the_reason_in_the_footnote() -> None:
    told = "deepspeed_zero2: its estimator does not speak of this"
    records = [r._replace(remarks=(told,)) for r in memory_records()]
    assert told in made_table("table_1", records).notes


@pytest.mark.parametrize("status", [status for status in Status if status != Status.OK])
def test_a_cell_that_did_not_end_well_is_named_with_its_reason_wherever_it_is_missing(status: Status) -> None:
    records = memory_records()
    at = next(i for i, r in enumerate(records) if r.cell.id == "memory-llama_7b-fsdp2-0")
    records[at] = records[at]._replace(status=str(status), reason="this is why", measurements=())
    for id in ("ranks", "pays", "kinds"):
        made = made_table(id, records)
        words = [cell.text for row in made.rows for cell in row if str(status).replace("_", " ") in cell.text]
        assert words, id
        assert all(re.fullmatch(r"[a-z ]+( \[\d+\])?", word) for word in words)
        assert any("this is why" in note for note in made.notes)
    failures = made_table("failures", records)
    assert len(failures.rows) == sum(record.status != "ok" for record in records)
    assert any("this is why" in cell.text for row in failures.rows for cell in row)


def test_a_wrong_result_shows_no_figure() -> None:
    records = [r._replace(status="wrong_result", reason="loss differs") for r in memory_records()]
    assert Frame(records, {}).figures == {}
    assert made_table("pays", records).rows[0][-1].text == "unavailable"


def test_a_new_arm_is_in_the_tables_without_an_edit_of_the_report() -> None:
    records = memory_records()
    records += [
        r._replace(cell=r.cell._replace(id=f"new-{r.cell.id}", optimization="brand_new"))
        for r in records
        if r.cell.optimization == "fsdp2"
    ]
    assert "brand_new" in [row[0].text for row in made_table("pays", records).rows]
    assert "brand_new" in [row[0].text for row in made_table("kinds", records).rows]
    assert "brand_new" in made_table("ranks", records).heads


def test_errors_against_pandas() -> None:
    import pandas

    records = memory_records()
    rows = [
        (one.method, value)
        for r in records
        for one in r.measurements
        if one.metric == "relative_error" and not r.cell.optimization.startswith("fsdp2")
        for value in one.samples
    ]
    frame = pandas.DataFrame(rows, columns=["method", "error"])
    findings = found(records)
    for row in error_rows(block(findings, "accuracy"), findings.frame):
        errors = frame[frame.method == row.method].error
        assert row.cells == len(errors)
        assert row.median == pytest.approx(errors.abs().median())
        assert row.worst == errors[errors.abs().idxmax()]
        assert row.under == pytest.approx((errors < 0).mean())
        assert row.least == errors.min()


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.5, "pays"), (2.0, "costs"), (1.0, "no difference"), (1.004, "no difference"), (1.006, "costs")],
)
def test_what_an_optimization_does(ratio: float, expected: str) -> None:
    assert meaning(ratio, 0.005)[0] == expected


def test_the_change_against_the_baseline() -> None:
    records = memory_records()
    made = made_table("pays", records)
    base = recorded(records, "llama_7b", "baseline", "peak_memory", "fake_step")
    ours = recorded(records, "llama_7b", "mixed_flash", "peak_memory", "fake_step")
    row = next(row for row in made.rows if row[0].text == "Mixed + flash")
    assert row[4].text == f"−{100 * (1 - ours / base):.1f} %"
    assert row[5].text == "pays"


def test_kinds_and_the_change_of_their_whole() -> None:
    records = memory_records()
    made = made_table("kinds", records)
    row = next(row for row in made.rows if row[0].text == "Mixed + flash")
    shown = dict(zip(made.heads, (cell.text for cell in row), strict=True))
    base = recorded(records, "llama_7b", "baseline", "peak_memory", "fake_step")
    ours = recorded(records, "llama_7b", "mixed_flash", "peak_memory", "fake_step")
    activations = recorded(records, "llama_7b", "mixed_flash", "peak_memory/activations", "fake_step")
    assert shown["Activations"] == f"{activations / 1e9:.1f} ˢ"
    assert shown["Against baseline"] == f"−{100 * (1 - ours / base):.1f} % ˢ"


def test_the_conditions_beside_each_arm_and_in_the_answer_at_the_top() -> None:
    records = memory_records()
    records = [
        r._replace(conditions={"ranks": "4"}) if r.cell.optimization == "fsdp2_mixed_checkpointed" else r
        for r in records
    ]
    made = made_table("pays", records)
    assert made.heads[1] == "Ranks"
    assert [row[1].text for row in made.rows if row[0].text.startswith("FSDP2 +")] == ["4"]
    findings = found(records)
    assert "FSDP2 + mixed + checkpointing" not in glance(findings, findings.frame)[0].answer


def test_a_run_of_another_model_is_reported_on_that_model() -> None:
    own = [r for r in memory_records() if r.cell.workload == "llama_1b"]
    own = [r._replace(cell=r.cell._replace(workload="my_model")) for r in own]
    made = made_table("pays", own)
    assert made.title.endswith("my_model")
    assert made.rows[0][3].text[-1] in MARKS
    assert [row[0].text for row in made_table("table_1", own).rows] == ["my_model"]
    assert len(shapes(found(own), "by_kind", "rect")) > 8


def test_a_remark_on_a_figure_is_its_footnote() -> None:
    told = "korthikanti: another shape of MLP"
    records = [
        r._replace(
            remarks=(told, "korthikanti_2: of another method"),
            measurements=(
                *r.measurements,
                Measurement("peak_memory", "B", "calculated", "korthikanti", (1e10,)),
            ),
        )
        for r in memory_records()
    ]
    made = made_table("table_1", records)
    cell = made.rows[0][made.heads.index("Korthikanti et al.")]
    assert made.notes[int(cell.note.strip(" []")) - 1] == told
    assert not any("korthikanti_2" in note for note in made.notes)


def test_names_in_the_reports_order_then_by_their_numbers() -> None:
    records = memory_records()
    frame = Frame(records, {"workload": ["gpt3_175b"]})
    assert frame.values("workload", {}) == ["gpt3_175b", "gpt_5m", "gpt_300m", "llama_1b", "llama_7b"]
    assert frame.values("workload", {"train": True, "workload": ["gpt*", "!*300m"]}) == ["gpt_5m"]


# Figures


def shapes(findings: Findings, id: str, tag: str) -> list[ElementTree.Element]:
    drawing = {"bars": figures.bars, "lines": lines, "spread": figures.spread}
    one = block(findings, id)
    picture = drawing[one.kind](one, findings.spec, findings.frame)
    assert picture is not None
    return list(ElementTree.fromstring(picture.file()).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def tip(shape: ElementTree.Element) -> str:
    return "".join(shape.itertext())


def test_bars_are_as_long_as_their_figures() -> None:
    records = memory_records()
    rects = [r for r in shapes(found(records), "by_kind", "rect") if " · " in tip(r)]
    scale = set()
    for rect in rects:
        arm, _, rest = tip(rect).partition(" · ")
        if arm == "FSDP2":
            kind = rest.partition(":")[0].lower().replace(" ", "_")
            size_B = recorded(records, "llama_7b", "fsdp2", f"peak_memory/{kind}", "fake_step")
            if size_B > 1e9:
                scale.add(round(float(rect.attrib["width"]) / size_B * 1e9, 1))
    assert len(scale) == 1


def test_an_arm_without_one_of_the_kinds_says_so_in_the_figure() -> None:
    records = [
        r._replace(measurements=tuple(m for m in r.measurements if m.metric != "peak_memory/temporaries"))
        for r in memory_records()
    ]
    sums = [tip(text) for text in shapes(found(records), "by_kind", "text") if tip(text).endswith("+ ?")]
    assert len(sums) == 8


def test_lines_rise_where_their_figures_rise() -> None:
    findings = found()
    for line in shapes(findings, "tokens_by_size", "polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        assert len(points) == 3
        assert points == sorted(points)
        assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_points_of_the_spread_lie_on_the_side_of_their_sign() -> None:
    drawn = shapes(found(), "accuracy_spread", "line")
    zero = next(float(line.attrib["x1"]) for line in drawn if line.attrib["stroke"] == COLOURS["ink"])
    dots = shapes(found(), "accuracy_spread", "circle")
    assert len(dots) == 2 * 8 * 3
    for dot in dots:
        assert (float(dot.attrib["cx"]) > zero) == (": +" in tip(dot))


@given(st.floats(1e-3, 1e12))
def test_ticks_are_few_and_within(high: float) -> None:
    ticks = round_ticks(high)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] == 0
    assert ticks[-1] <= high * 1.00001


@given(st.floats(1e-3, 1e9), st.floats(2.0, 1e5))
def test_logarithmic_ticks_are_few_and_within(low: float, span: float) -> None:
    ticks = log_ticks(low, low * span)
    assert 1 <= len(ticks) <= 12
    assert all(low <= tick <= low * span for tick in ticks)


@given(st.floats(0.01, 100), st.floats(-1, 1), st.floats(-1, 1))
def test_the_symmetric_axis_keeps_order_and_zero(reach: float, a: float, b: float) -> None:
    place = symmetric(reach, 0.001, 0, 100)
    low, high = sorted((a * reach, b * reach))
    assert place(low) <= place(high) + 1e-9
    assert place(0.0) == pytest.approx(50)
    assert -1e-6 <= place(low) <= 100 + 1e-6


def test_nothing_recorded_draws_nothing_and_says_so(tmp_path: Path) -> None:
    records = [r._replace(status="crashed", reason="all of them", measurements=()) for r in memory_records()]
    write_report(tmp_path, found(records))
    text = (tmp_path / "report.md").read_text()
    assert "Nothing was recorded for this figure." in text
    assert "Nothing was recorded for this table." in text
    assert not list((tmp_path / "figures").iterdir())


def test_a_name_in_a_figure_is_text_and_never_markup(tmp_path: Path) -> None:
    name = 'a <b>&"@ink'
    records = [
        r._replace(cell=r.cell._replace(optimization=name)) if r.cell.optimization == "fsdp2" else r
        for r in memory_records()
    ]
    assert name in [tip(text) for text in shapes(found(records), "by_kind", "text")]
    assert read_page(write_report(tmp_path, found(records)).read_text()).open == []


# The page


class Reader(HTMLParser):
    """Collects ids, links, whatever could load something, and whether tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.scripts = 0
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given["href"])
        self.loads += [given[name] for name in ("src", "srcset", "data", "action") if name in given]
        self.loads += [tag] if tag in ("link", "iframe", "img", "object", "embed", "base", "form") else []
        self.scripts += tag == "script"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read_page(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_the_page_needs_nothing_else_and_leads_to_every_record(tmp_path: Path) -> None:
    findings = found()
    text = write_report(tmp_path, findings).read_text()
    reader = read_page(text)
    assert reader.open == []
    assert reader.loads == []
    assert "@import" not in text
    assert "url(" not in text
    assert len(reader.ids) == len(set(reader.ids))
    inner = {link[1:] for link in reader.links if link.startswith("#")}
    assert inner <= set(reader.ids)
    assert {f"r-{record.cell.id}" for record in findings.records} <= set(reader.ids)
    assert {link for link in reader.links if not link.startswith("#")} == {"records.jsonl", "verdicts.json"}
    assert LEGEND in text


def test_what_a_record_says_is_text_and_never_markup(tmp_path: Path) -> None:
    text = write_report(tmp_path, found()).read_text()
    reader = read_page(text)
    assert reader.scripts == 1  # the page's own
    assert any("<script>alert('@ink | 1')</script>" in words for words in reader.words)
    markdown = (tmp_path / "report.md").read_text()
    assert "<script>" not in markdown
    assert "@ink \\| 1" in markdown


def test_every_sample_is_on_the_page_as_recorded(tmp_path: Path) -> None:
    findings = found()
    text = write_report(tmp_path, findings).read_text()
    for record in findings.records:
        for one in record.measurements:
            assert repr(one.samples[0]) in text


def test_every_verdict_is_in_the_page_the_markdown_and_the_json(tmp_path: Path) -> None:
    findings = found()
    page = read_page(write_report(tmp_path, findings).read_text())
    words = " ".join(page.words)
    markdown = (tmp_path / "report.md").read_text()
    rows = json.loads((tmp_path / "verdicts.json").read_text())
    assert len(rows) == len(findings.verdicts)
    for verdict, row in zip(findings.verdicts, rows, strict=True):
        assert verdict.sentence in words
        assert verdict.sentence in markdown
        assert row["sentence"] == verdict.sentence
        assert row["supports"]
    for claim in findings.claims:
        for caveat in claim.caveats:
            assert caveat in words
            assert caveat in markdown


def test_tables_of_the_markdown_are_whole(tmp_path: Path) -> None:
    write_report(tmp_path, found())
    lines = (tmp_path / "report.md").read_text().splitlines()
    for above, line in pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            count = len(re.findall(r"(?<!\\)\|", above))
            assert count == len(re.findall(r"(?<!\\)\|", line)), line
    for name in re.findall(r"\]\((figures/[^)]+)\)", "\n".join(lines)):
        ElementTree.parse(tmp_path / name)


# The same bytes


def test_the_order_of_records_and_a_second_writing_change_nothing(tmp_path: Path) -> None:
    records = memory_records()
    write_report(tmp_path / "one", found(records))
    random.Random(1).shuffle(records)
    write_report(tmp_path / "two", found(records))
    write_report(tmp_path / "two", found(records))
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_figure_that_is_no_longer_drawn_does_not_stay(tmp_path: Path) -> None:
    records = memory_records()
    write_report(tmp_path / "one", found(records))
    fewer = [r for r in records if r.cell.workload.startswith("llama")]
    write_report(tmp_path / "one", found(fewer))
    write_report(tmp_path / "two", found(fewer))
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_times_change_nothing(tmp_path: Path) -> None:
    records = memory_records()
    write_report(tmp_path / "one", found(records))
    late = [r._replace(started_at="2031-01-01T00:00:00+00:00", duration_s=99.0) for r in records]
    write_report(tmp_path / "two", found(late))
    assert files(tmp_path / "one") == files(tmp_path / "two")


PROGRAM = """
import sys
from pathlib import Path
import test_report
test_report.write_report(Path(sys.argv[1]), test_report.found())
heavy = {"torch", "scipy", "deepspeed", "transformers"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_another_process_writes_the_same_bytes_without_heavy_libraries(seed: str, tmp_path: Path) -> None:
    write_report(tmp_path / "one", found())
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), str(here)])
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": paths,
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError) as error:
        write_report(tmp_path / "taken", found())
    assert str(error.value).startswith(f"cannot write the report into {tmp_path / 'taken'}: ")
    assert "\n" not in str(error.value)


def test_a_torn_environment_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "environment-synthetic.json").write_text("{")
    with pytest.raises(ConfigError, match=r"environment-synthetic\.json: cannot be read"):
        found(folder=tmp_path)


# All suites, the terminal, the spec


def test_one_page_for_all_suites(tmp_path: Path) -> None:
    findings = found()
    page = write_report(tmp_path / "memory", findings)
    text = write_all(tmp_path / "all", [(findings, page)]).read_text()
    reader = read_page(text)
    assert reader.open == []
    assert reader.loads == []
    for link in reader.links:
        way, _, target = link.partition("#")
        if not way:
            assert target in reader.ids
            continue
        other = (tmp_path / "all" / way).resolve()
        assert other == page.resolve()
        assert not target or f'id="{target}"' in other.read_text()
    words = " ".join(reader.words)
    assert all(verdict.sentence in words for verdict in findings.verdicts)
    assert "(../memory/report.md)" in (tmp_path / "all" / "report.md").read_text()


def test_the_terminal_gets_plain_lines_where_it_is_none() -> None:
    out = io.StringIO()
    findings = found()
    show(findings, Path("somewhere/report.html"), out)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "somewhere/report.html" in text
    assert "280 (4)" in text
    for verdict in findings.verdicts:
        assert verdict.reading in text or verdict.ours is None
    lacking = sum(verdict.ours is None for verdict in findings.verdicts)
    assert f"{lacking} verdicts are unavailable" in text
    assert text.count("falls short") >= sum(v.outcome == "falls short" for v in findings.verdicts)


def test_a_table_too_wide_for_the_terminal_is_turned() -> None:
    made = made_table("table_1")
    turned = fitting(made, 100)
    assert turned.heads == ("Model", *(row[0].text for row in made.rows))
    assert [row[0].text for row in turned.rows] == list(made.heads[1:])
    for i, row in enumerate(made.rows):
        assert [other[i + 1] for other in turned.rows] == list(row[1:])
    assert fitting(made, 500) == made


def test_a_suite_without_a_report_of_its_own_still_gets_one(tmp_path: Path) -> None:
    records = [r._replace(cell=r.cell._replace(suite="unheard_of")) for r in memory_records()]
    write_report(tmp_path, gather("unheard_of", records, [], tmp_path))
    assert "no end within 600 s" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "suite: s\ntitle: t\nquestion: q\nblocks: [{kind: pie, id: a, title: b}]",
            "allowed: verdicts, table",
        ),
        ("suite: s\ntitle: t\nquestion: q\nblocks: [{kind: failures, id: a}]", "(a).title: missing"),
        ("suite: s\ntitle: t\nquestion: q\nblocks: [{kind: failures, id: a, title: b, c: 1}]", "(a).c"),
        ("suite: s\ntitle: t\nquestion: q\nblocks: [a]", "blocks[0]: 'a'; expected KEY: VALUE"),
        ("suite: other\ntitle: t\nquestion: q\nblocks: []", "'other'; expected 's'"),
        (
            "suite: s\ntitle: t\nquestion: q\nblocks:\n"
            "  - {kind: table, id: a, title: b, rows: workload, columns: [{title: c}]}",
            "columns[0]: expected either metric or claim",
        ),
        (
            "suite: s\ntitle: t\nquestion: q\nblocks:\n"
            "  - {kind: failures, id: a, title: b}\n  - {kind: verdicts, id: a, title: b}",
            "'a' stands twice",
        ),
    ],
)
def test_a_mistake_in_a_report_is_one_line_that_names_its_place(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_spec("s", tmp_path)
    assert "\n" not in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize("suite", sorted(path.stem for path in REPORTS.glob("*.yaml")))
def test_every_report_in_conf_is_whole(suite: str) -> None:
    spec = load_spec(suite)
    kinds = {one.kind for one in spec.blocks}
    assert {"verdicts", "failures"} <= kinds <= set(KINDS)


def test_every_sample_is_a_row_of_the_tidy_table():
    from harness.records import Cell, Measurement, Record
    from harness.report.tidy import tidy

    cell = Cell("c", "memory", "w", "baseline", "baseline", 0, 0, {"workload": {}, "settings": {}})
    measured = Measurement("peak_memory", "B", "measured", "measured", (3.0, 5.0))
    table = tidy([Record(cell, "ok", measurements=(measured,)), Record(cell, "crashed", "why")])
    assert table["value"].tolist()[:2] == [3.0, 5.0]
    assert table["sample"].tolist()[:2] == [0, 1]
    assert table["status"].tolist() == ["ok", "ok", "crashed"]
