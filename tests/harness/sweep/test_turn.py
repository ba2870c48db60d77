"""A folder of results is written by one process at a time: real processes, one of which is killed."""

import subprocess
import sys

from harness.config.code_fingerprint import ROOT

HAVING_A_TURN = """
import sys
from pathlib import Path
from harness.sweep.store import turn

with turn(Path(sys.argv[1])):
    print("here", flush=True)
    sys.stdin.readline()
"""


def having_a_turn(folder):
    """Start a process that has its turn until it reads a line."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HAVING_A_TURN, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_who_comes_second_waits_and_says_for_whom(tmp_path):
    folder = tmp_path / "results" / "memory"
    first = having_a_turn(folder)
    assert first.stdout.readline() == "here\n"
    second = having_a_turn(folder)
    assert f"waiting for another process (pid {first.pid})" in second.stderr.readline()
    first.communicate("go on\n", timeout=60)
    output, _ = second.communicate("go on\n", timeout=60)
    assert (first.returncode, second.returncode, output) == (0, 0, "here\n")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_killed_process_leaves_no_lock(tmp_path):
    killed = having_a_turn(tmp_path)
    assert killed.stdout.readline() == "here\n"
    killed.kill()
    killed.communicate(timeout=60)
    assert having_a_turn(tmp_path).communicate("go on\n", timeout=60) == ("here\n", "")
