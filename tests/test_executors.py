"""What the runner asks of any executor, near or far."""

import pytest
from toy.sweep import cell, group

from harness.environment import describe
from harness.executors import (
    CellFinished,
    CellNote,
    CellReading,
    CellStarted,
    Conditions,
    event_from_json,
    event_to_json,
)
from harness.records import Limits, Measurement, Reading, Record
from harness.runner import run
from harness.store import Store, read_records


class Scripted:
    """An executor that says what it is told to, as one elsewhere would: line by line."""

    def __init__(self, *events):
        self.lines = [event_to_json(event) for event in events]
        self.closed = False

    def run(self, groups, limits):
        try:
            yield from map(event_from_json, self.lines)
        finally:
            self.closed = True


def test_any_executor_will_do_and_events_of_cells_may_mix(tmp_path):
    one, two = cell("nothing"), cell("hang")
    executor = Scripted(
        CellStarted(one.id, "t1"),
        CellStarted(two.id, "t2"),
        CellReading(one.id, Reading("time", "s", 1.0, "measured", "a")),
        CellNote(two.id, "words"),
        Conditions(one.id, {"device": "x"}),
        CellReading(two.id, Reading("time", "s", 2.0, "measured", "a")),
        CellReading(one.id, Reading("time", "s", 3.0, "measured", "a")),
        CellFinished(two.id, "crashed", "why", 0.5),
        CellFinished(one.id, "ok", "", 1.5),
    )
    heard = []
    environment = describe()
    with Store(tmp_path) as store:
        run([group(one), group(two)], store, executor, Limits(1.0), environment, heard.append)
    first = Measurement("time", "s", "measured", "a", (1.0, 3.0))
    second = Measurement("time", "s", "measured", "a", (2.0,))
    assert read_records(tmp_path) == [
        Record(two, "crashed", "why", (second,), ("words",), {}, environment.digest, Limits(1.0), "t2", 0.5),
        Record(one, "ok", "", (first,), (), {"device": "x"}, environment.digest, Limits(1.0), "t1", 1.5),
    ]
    assert [event_to_json(event) for event in heard] == executor.lines
    assert executor.closed


def test_an_executor_that_forgets_a_cell_is_found_out(tmp_path):
    one, two = cell("nothing"), cell("hang")
    executor = Scripted(CellStarted(one.id, "t"), CellFinished(one.id, "ok", "", 0.0))
    with Store(tmp_path) as store, pytest.raises(RuntimeError, match=f"1 cells without an end: {two.id}"):
        run([group(one, two)], store, executor, Limits(1.0), describe())
    assert [record.cell for record in read_records(tmp_path)] == [one]
