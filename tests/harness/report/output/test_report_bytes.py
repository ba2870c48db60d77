"""What is written: whole, self-contained, every record and verdict in it, and always the same bytes."""

import json
import os
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import PYTHONPATH
from pytest_benchmark.stats import Stats
from refusals import mistaken
from reporting import files, found, read_page
from synthetic import memory_records
from timed import BASE_S, DRIFT, PROCESSES, timed_findings, timed_records

from harness.report import write_report
from harness.report.verdicts import judged
from harness.report.write import stats
from harness.units import LEGEND


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder, data = tmp_path_factory.mktemp("written"), found()
    write_report(folder, data)
    return data, folder


def test_the_page_needs_nothing_else_leads_to_every_record_and_what_one_says_is_text(written):
    findings, folder = written
    text = (folder / "report.html").read_text()
    reader = read_page(text)
    for record in findings.records:
        assert all(repr(one.samples[0]) in text for one in record.measurements), record.cell.id
    assert (reader.open, reader.loads) == ([], [])
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")  # its own clip paths
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert {f"r-{record.cell.id}" for record in findings.records} <= set(reader.ids)
    assert {link for link in reader.links if not link.startswith("#")} == {"records.jsonl", "verdicts.json"}
    assert LEGEND in text
    assert reader.scripts == 1  # the page's own
    assert any("<script>alert('@ink | 1')</script>" in words for words in reader.words)
    markdown = (folder / "report.md").read_text()
    assert "<script>" not in markdown
    assert "@ink \\| 1" in markdown


def test_every_verdict_is_in_the_page_the_markdown_whose_tables_are_whole_and_the_json(written):
    findings, folder = written
    words = " ".join(read_page((folder / "report.html").read_text()).words)
    markdown = (folder / "report.md").read_text()
    rows = json.loads((folder / "verdicts.json").read_text())["verdicts"]
    sentences = [one.sentence(v) for one in judged(findings.claims, findings.verdicts) for v in one.verdicts]
    assert [row["sentence"] for row in rows] == sentences
    assert len(rows) == len(findings.verdicts)
    assert all(row["source_says"] for row in rows)
    for text in (*sentences, *(caveat for claim in findings.claims for caveat in claim.caveats)):
        assert text in words
        assert text in markdown


def ran(records, day, length_s):
    return [one._replace(started_at=f"{day}T00:00:00+00:00", duration_s=length_s) for one in records]


def test_times_change_the_line_about_the_run_and_order_and_what_was_there_before_change_nothing(tmp_path):
    fewer = [r for r in memory_records() if r.cell.workload.startswith("llama")]
    write_report(tmp_path / "one", found(ran(fewer, "2031-01-01", 99.0)))
    (tmp_path / "two/figures").mkdir(parents=True)
    for name in ("report.md", "benchmark.json", "figures/of_an_earlier_report.svg"):
        (tmp_path / "two" / name).write_text("earlier")
    random.Random(1).shuffle(fewer)
    write_report(tmp_path / "two", found(ran(fewer, "2032-12-24", 7500.0)))
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    for name in ("report.md", "report.html"):
        assert one[name].count(b"1 Jan 2031, ") == 1
        one[name] = re.sub(rb"1 Jan 2031, \w+( h)? \w+( min)?", b"X", one[name])
        two[name] = re.sub(rb"24 Dec 2032, \w+( h)? \w+( min)?", b"X", two[name])
    assert one == two


PROGRAM = """
import sys
from pathlib import Path
from harness.report import write_report
from reporting import found
write_report(Path(sys.argv[1]), found())
heavy = {"torch", "scipy", "deepspeed", "transformers"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_another_process_writes_the_same_bytes_without_heavy_libraries(tmp_path, written):
    changed = {"PYTHONHASHSEED": "4242", "PYTHONPATH": PYTHONPATH, "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "two")]
    done = subprocess.run(command, env={**os.environ, **changed}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files(written[1]) == files(tmp_path / "two")


def test_what_cannot_be_written_or_read_is_one_line(tmp_path, written):
    (tmp_path / "taken").write_text("a file")
    said = f"cannot write the report into {tmp_path / 'taken'}: "
    mistaken(lambda: write_report(tmp_path / "taken", written[0]), said)
    (tmp_path / "environment-synthetic.json").write_text("{")
    mistaken(lambda: found(folder=tmp_path), "environment-synthetic.json: cannot be read")


def benchmark(folder, records=None):
    block = "  - {speedups: s, title: S, method: warm}\n"
    write_report(folder / "out", timed_findings(folder, block, records))
    return folder / "out" / "benchmark.json"


@given(st.lists(st.floats(1e-7, 1e2), min_size=1, max_size=60))
def test_the_statistics_are_pytest_benchmarks_own(samples):
    theirs = Stats()
    for sample in samples:
        theirs.update(sample)
    expected, ours = theirs.as_dict(), stats(samples)
    assert list(ours) == list(expected)
    for name, value in expected.items():
        assert ours[name] == (value if isinstance(value, str) else pytest.approx(value)), name


def test_a_group_per_workload_and_method_has_the_baseline_first_and_every_round_of_every_process(tmp_path):
    path = benchmark(tmp_path)
    data = json.loads(path.read_text())
    groups = {}
    for one in data["benchmarks"]:
        groups.setdefault(one["group"], []).append(one["param"])
        assert one["stats"]["rounds"] == PROCESSES * len(DRIFT)
        assert one["stats"]["max"] < 90  # no warm-up, which is 98 s and more in these records
    assert set(groups) == {f"{workload} (warm)" for workload in BASE_S}
    for first, *others in groups.values():
        assert (first, sorted(others)) == ("baseline", ["baseline_again", "fast", "same", "slow"])
    benchmark(tmp_path, [r._replace(measurements=()) for r in timed_records()])
    assert not path.exists(), "without times, no earlier one is left"
