"""The committed reports come out of the committed records, byte for byte."""

import filecmp
import subprocess
import sys

import pytest

from harness.code_fingerprint import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "results/reference").rglob("records.jsonl"))
DATA = ("records.jsonl", "plan.json", "environment-")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_committed_report_comes_out_of_the_committed_records(folder, tmp_path):
    command = [sys.executable, "-m", "harness", f"from_results={folder}", f"out={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kept = {name for name in kept if not name.startswith(DATA)}
    assert made == kept
    for name in kept:
        assert filecmp.cmp(tmp_path / name, folder / name, shallow=False), f"{name} differs"


def test_there_is_a_reference():
    assert FOLDERS
