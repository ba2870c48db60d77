"""What a person sees: lines where there is no terminal, a bar on one."""

import logging
import os
import pty
import re
import subprocess
import sys

from places import SUPPORT
from toy.sweep import cell, environ, group

from harness.records import Record
from harness.sweep.executors import CellFinished, CellStarted
from harness.sweep.plan import Basis, CellEstimate, SweepEstimate
from harness.sweep.progress import Progress
from harness.sweep.store import Store

CELLS = [cell("nothing"), cell("hang"), cell("nothing", repeat=1)]
SWEEP = """
import logging, sys
from toy.sweep import *
from harness.sweep.plan import SweepEstimate
from harness.sweep.progress import Progress
logging.basicConfig(format="harness: %(message)s")
groups = [group(cell("nothing", amount=0.3), cell("write_nonsense_among_events"), cell("raise_error"))]
with Store(Path(sys.argv[1])) as store, Progress(groups, store, SweepEstimate({}, 1)) as progress:
    run(groups, store, create(Path(sys.argv[1]), 1), LIMITS, describe(), progress)
print("after")
"""


def finish(progress, *ends):
    """Let the first cells end with these statuses and reasons."""
    for one, (status, reason) in zip(CELLS, ends, strict=False):
        progress(CellStarted(one.id, "t"))
        progress(CellFinished(one.id, status, reason, 1.25))


def test_elsewhere_each_cell_is_a_line_with_how_long_is_left(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    cells = {one.id: CellEstimate(40.0, Basis.HERE) for one in CELLS}
    clock = iter([100.0, 180.0, 260.0, 300.0])
    with Store(tmp_path) as store:
        store.append(Record(CELLS[0], "timed_out"))  # which is run again
        with Progress([group(*CELLS)], store, SweepEstimate(cells, 1), lambda: next(clock)) as progress:
            traceback = "exit code 1; last printed:\nTraceback\nValueError: of what"
            finish(progress, ("ok", ""), ("crashed", "why\nmore"), ("crashed", traceback))
        store.append(Record(CELLS[2], "ok"))  # which is done already
        finish(Progress([group(*CELLS)], store, SweepEstimate({}, 1)), ("ok", ""))
    third = "exit code 1; last printed: ValueError: of what"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "1/3 faults nothing baseline: ok (1.2 s); 2 left, about 3 min"),
        ("WARNING", "2/3 faults hang baseline: crashed: why (1.2 s); 1 left, about 80 s"),
        ("WARNING", f"3/3 faults nothing baseline #2: crashed: {third} (1.2 s)"),
        ("INFO", "2/3 faults nothing baseline: ok (1.2 s); 1 left, about 1 s"),
    ]


def test_on_a_terminal_there_is_a_bar_and_other_lines_stand_above_it(tmp_path):
    ours, theirs = pty.openpty()
    environment = environ() | {"TERM": "xterm-256color", "COLUMNS": "120"}
    environment["PYTHONPATH"] += f":{SUPPORT}"
    command = [sys.executable, "-c", SWEEP, str(tmp_path)]
    sweep = subprocess.Popen(command, env=environment, stderr=theirs, stdout=theirs)
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert sweep.wait() == 0
    text = seen.decode()
    assert "0/3" in text
    assert "faults nothing baseline" in text
    assert _plain(text).splitlines()[:2] == [
        "harness: a child wrote b'nonsense' among its events",
        "faults raise_error baseline: crashed: ValueError: the text",
    ]
    assert "1 crashed" in text
    assert text.rstrip().endswith("after")


def _plain(text):
    """Return what stays on the screen: without erased lines and the control sequences of the bar."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", re.sub(r"[^\n]*\x1b\[2K", "", text))


def _read(fd):
    try:
        return os.read(fd, 4096)
    except OSError:  # the other end has closed
        return b""
