"""What one cell's end says of others: larger shapes, and further repeats."""

from harness.foretold import Foretold
from harness.records import Cell, Record, Status


def record(status, arm="a", reason="", repeat=0, **workload):
    config = {"workload": workload}
    name = f"w{workload['size']}"
    return Record(Cell(f"{workload}{arm}{repeat}", "s", name, arm, arm, repeat, 0, config), status, reason)


def test_what_is_larger_than_what_ran_out_of_memory_is_named_and_not_tried():
    foretold = Foretold(["size", "batch"])
    foretold.note(record("ok", size=1, batch=8, kind="x"))
    foretold.note(record("out_of_memory", size=4, batch=2, kind="x"))
    foretold.note(record("out_of_memory", size=2, batch=2, kind="x", reason="not tried: whatever"))
    assert foretold.end_of(record("", size=2, batch=4, kind="x").cell) is None
    assert foretold.end_of(record("", size=8, batch=2, kind="x").cell) == (
        Status.OUT_OF_MEMORY,
        "not tried: a ran out of memory on w4, which is no larger (size 4, batch 2)",
    )
    assert foretold.end_of(record("", size=8, batch=1, kind="x").cell) is None
    assert foretold.end_of(record("", size=3, batch=64, kind="x").cell) is None
    assert (
        "again"
        in foretold.end_of(record("", size=4, batch=2, kind="x", repeat=1, source="elsewhere").cell)[1]
    )
    assert foretold.end_of(record("", size=8, batch=2, kind="y").cell) is None
    assert foretold.end_of(record("", size=8, batch=2, kind="x", arm="b").cell) is None


def test_without_a_size_every_cell_is_tried():
    foretold = Foretold([])
    foretold.note(record("out_of_memory", size=1))
    assert foretold.end_of(record("", size=2).cell) is None


def test_what_cannot_run_here_cannot_in_its_further_repeats():
    foretold = Foretold([])
    foretold.note(record("unavailable", reason="no GPU", size=1))
    assert foretold.end_of(record("", repeat=1, size=1).cell) == (Status.UNAVAILABLE, "no GPU")
    assert foretold.end_of(record("", repeat=1, size=2).cell) is None
    assert foretold.end_of(record("", arm="b", repeat=1, size=1).cell) is None
