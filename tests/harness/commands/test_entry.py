"""Whatever is typed: one line of at most 300 characters, readable in any encoding, no traceback."""

import os
import subprocess
import sys

import pytest

from harness.commands.entry import DONE, INTERRUPTED, shortened
from harness.config.code_fingerprint import ROOT


def test_a_line_is_shortened_in_the_middle():
    said = shortened(f"key={'x' * 5000}:\n  expected a number")
    assert said.startswith("key=xxx")
    assert said.endswith("xxx: expected a number")
    assert len(said) <= 300


def test_a_terminal_of_ascii_alone():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "harness", "list"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (DONE, b"")
    assert done.stdout.decode("ascii").count("?") < 25  # questions end so


@pytest.mark.parametrize("when", ["while it is imported", "while it runs"])
def test_ctrl_c_leaves_no_traceback(when, tmp_path):
    now = "os.kill(os.getpid(), signal.SIGINT)"
    before, within = (now, "pass") if when == "while it is imported" else ("pass", now)
    (tmp_path / "slow.py").write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it\n"
        f"{before}\ndef main(argv):\n    {within}\n    return 0\n"
    )
    call = "from harness.commands.entry import run_module; run_module('harness.slow', 'slow')"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", call], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (INTERRUPTED, "harness.slow: interrupted\n")
