"""pytest-benchmark's JSON: its own statistics, read by its own command, of the machine what was kept."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats
from timed import BASE_S, DRIFT, PROCESSES, timed_findings, timed_record, timed_records

from harness.records import Record
from harness.report import write_report
from harness.report.write import stats

BLOCKS = "  - {speedups: s, title: S, method: warm}\n"


def written(folder: Path, records: list[Record] | None = None) -> Path:
    write_report(folder / "out", timed_findings(folder, BLOCKS, records))
    return folder / "out" / "benchmark.json"


@given(st.lists(st.floats(1e-7, 1e2), min_size=1, max_size=60))
def test_the_statistics_are_pytest_benchmarks_own(samples: list[float]) -> None:
    theirs = Stats()
    for sample in samples:
        theirs.update(sample)
    expected = theirs.as_dict()
    ours = stats(samples)
    assert list(ours) == list(expected)
    for name, value in expected.items():
        assert ours[name] == (value if isinstance(value, str) else pytest.approx(value)), name


def test_its_own_command_reads_and_compares_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest_benchmark",
        "compare",
        str(path),
        f"--csv={tmp_path / 'table.csv'}",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for workload in BASE_S:
        assert f"benchmark '{workload} (warm)'" in done.stdout
        assert f"{workload}[fast]" in done.stdout
    rows = (tmp_path / "table.csv").read_text().splitlines()
    head = rows[0].split(",")
    fast = next(row.split(",") for row in rows if "small[fast]" in row)
    expected = statistics.median([1e-3 * (1 + 0.1 * r) * d * 0.5 for r in range(PROCESSES) for d in DRIFT])
    assert float(fast[head.index("median")]) == pytest.approx(expected)


def test_a_group_a_workload_the_baseline_first_every_round_of_every_process(tmp_path: Path) -> None:
    data = json.loads(written(tmp_path).read_text())
    groups: dict[str, list[str]] = {}
    for one in data["benchmarks"]:
        groups.setdefault(one["group"], []).append(one["param"])
        assert one["stats"]["rounds"] == PROCESSES * len(DRIFT)
        assert one["stats"]["max"] < 90  # no warm-up, which is 98 s and more in these records
    assert set(groups) == {f"{workload} (warm)" for workload in BASE_S}
    for variants in groups.values():
        assert variants[0] == "baseline"
        assert sorted(variants[1:]) == ["baseline_again", "fast", "same", "slow"]
    names = [one["fullname"] for one in data["benchmarks"]]
    assert len(set(names)) == len(names)


def test_of_the_machine_it_reports_what_the_environment_kept(tmp_path: Path) -> None:
    data = json.loads(written(tmp_path).read_text())
    info = data["machine_info"]
    assert (info["node"], info["system"], info["release"], info["machine"]) == ("", "Linux", "6.1", "x86_64")
    assert info["cpu"] == {"brand_raw": "a CPU", "count": 2}
    assert data["commit_info"]["id"] == "abc"
    assert data["datetime"] == "2031-01-04T00:00:00+00:00"


def test_methods_of_timing_are_groups_of_their_own(tmp_path: Path) -> None:
    records = [timed_record("small", "baseline", 0, 1.0), timed_record("small", "baseline", 1, 1.0, "cold")]
    data = json.loads(written(tmp_path, records).read_text())
    assert [one["group"] for one in data["benchmarks"]] == ["small (cold)", "small (warm)"]


def test_a_run_without_times_has_no_such_file_and_leaves_no_earlier_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert path.exists()
    written(tmp_path, [r._replace(measurements=()) for r in timed_records()])
    assert not path.exists()
