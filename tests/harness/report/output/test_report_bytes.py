"""The same findings give the same bytes; what cannot be written or read is reported."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from places import PYTHONPATH
from reporting import files, found
from synthetic import memory_records

from harness.config.validation import ConfigError
from harness.report import write_report


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


def test_times_change_the_line_about_the_run_alone(tmp_path: Path) -> None:
    records = memory_records()
    early, late = (
        [r._replace(started_at=f"{day}T00:00:00+00:00", duration_s=length_s) for r in records]
        for day, length_s in (("2031-01-01", 99.0), ("2032-12-24", 7500.0))
    )
    write_report(tmp_path / "one", found(early))
    write_report(tmp_path / "two", found(late))
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    for name in ("report.md", "report.html"):
        assert one[name].count(b"1 Jan 2031, 2 min") == 1
        one[name] = one[name].replace(b"1 Jan 2031, 2 min", b"24 Dec 2032, 2 h 5 min")
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


def test_another_process_writes_the_same_bytes_without_heavy_libraries(tmp_path: Path) -> None:
    write_report(tmp_path / "one", found())
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4242",
        "PYTHONPATH": PYTHONPATH,
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError) as error:
        write_report(tmp_path / "taken", found())
    assert str(error.value).startswith(f"cannot write the report into {tmp_path / 'taken'}: ")
    assert "\n" not in str(error.value)


def test_a_torn_environment_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "environment-synthetic.json").write_text("{")
    with pytest.raises(ConfigError, match=r"environment-synthetic\.json: cannot be read"):
        found(folder=tmp_path)
