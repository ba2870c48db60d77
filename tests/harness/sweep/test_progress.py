"""What a person sees: lines where there is no terminal, a bar on one."""

import logging

from toy.sweep import cell, group

from harness.records import Record
from harness.sweep.executors import CellFinished, CellStarted
from harness.sweep.plan import Basis, CellEstimate, SweepEstimate
from harness.sweep.progress import Progress
from harness.sweep.store import Store

CELLS = [cell("nothing"), cell("hang"), cell("nothing", repeat=1)]


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
