"""What the runner asks of any executor, near or far."""

import pytest
from toy.sweep import cell, group

from harness.config.run import automatic
from harness.records import Cell, Limits, Measurement, Reading, Record, Status
from harness.sweep.environment import describe
from harness.sweep.executors import (
    CellFinished,
    CellNote,
    CellReading,
    CellStarted,
    Conditions,
    ExecutorError,
    event_from_json,
    event_to_json,
    torchrun,
)
from harness.sweep.executors.torchrun import executor_context
from harness.sweep.runner import SkipRules, run
from harness.sweep.store import Store, read_records


class Scripted:
    """An executor that says what it is told to, as one elsewhere would: line by line."""

    def __init__(self, *events):
        self.lines = [event_to_json(event) for event in events]
        self.closed = False

    def run(self, groups, limits, several):
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
    here = environment.digest, Limits(1.0)
    assert read_records(tmp_path) == [
        Record(two, "crashed", "why", (second,), ("words",), {}, *here, "t2", 0.5, environment.host),
        Record(one, "ok", "", (first,), (), {"device": "x"}, *here, "t1", 1.5, environment.host),
    ]
    assert [event_to_json(event) for event in heard] == executor.lines
    assert executor.closed


def test_a_process_by_itself_has_no_ranks_to_run_on(tmp_path):
    assert automatic() == "local"
    with executor_context():
        pass  # nothing surrounds its command
    with pytest.raises(ExecutorError, match="executor=torchrun: no launcher started this process"):
        torchrun.create(tmp_path)


def record(status, variant="a", reason="", repeat=0, **workload):
    name, config = f"w{workload['size']}", {"workload": workload}
    cell = Cell(f"{workload}{variant}{repeat}", "s", name, variant, variant, repeat, 0, config)
    return Record(cell, status, reason)


def reason_of(rules, **fields):
    return rules.skip_reason(record("", **fields).cell)


def test_what_is_larger_than_what_ran_out_of_memory_is_named_and_not_tried():
    rules = SkipRules(["size", "micro_batch_size"])
    rules.note(record("ok", size=1, micro_batch_size=8, kind="x"))
    rules.note(record("out_of_memory", size=4, micro_batch_size=2, kind="x"))
    rules.note(record("out_of_memory", size=2, micro_batch_size=2, kind="x", reason="not tried: whatever"))
    assert reason_of(rules, size=8, micro_batch_size=2, kind="x") == (
        Status.OUT_OF_MEMORY,
        "not tried: a ran out of memory on w4, which is no larger (size 4, micro_batch_size 2)",
    )
    assert "again" in reason_of(rules, size=4, micro_batch_size=2, kind="x", repeat=1, source="elsewhere")[1]
    for size, micro_batch_size, kind, variant in (
        (2, 4, "x", "a"), (8, 1, "x", "a"), (3, 64, "x", "a"), (8, 2, "y", "a"), (8, 2, "x", "b")
    ):  # fmt: skip
        tried = {"size": size, "micro_batch_size": micro_batch_size, "kind": kind, "variant": variant}
        assert reason_of(rules, **tried) is None, tried
    rules = SkipRules([])
    rules.note(record("out_of_memory", size=1))
    assert reason_of(rules, size=2) is None


def test_what_cannot_run_here_cannot_in_its_further_repeats():
    rules = SkipRules([])
    rules.note(record("unavailable", reason="no GPU", size=1))
    assert reason_of(rules, repeat=1, size=1) == (Status.UNAVAILABLE, "no GPU")
    assert reason_of(rules, repeat=1, size=2) is None
    assert reason_of(rules, variant="b", repeat=1, size=1) is None


def test_an_executor_that_forgets_a_cell_is_found_out(tmp_path):
    one, two = cell("nothing"), cell("hang")
    executor = Scripted(CellStarted(one.id, "t"), CellFinished(one.id, "ok", "", 0.0))
    with Store(tmp_path) as store, pytest.raises(RuntimeError, match=f"did not end 1 cell: {two.id}"):
        run([group(one, two)], store, executor, Limits(1.0), describe())
    assert [record.cell for record in read_records(tmp_path)] == [one]
