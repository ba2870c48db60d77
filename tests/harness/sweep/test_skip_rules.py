"""Skip rules: what the end of one cell implies for larger shapes and further repeats."""

from harness.records import Cell, Record, Status
from harness.sweep.runner import SkipRules


def record(status, variant="a", reason="", repeat=0, **workload):
    config = {"workload": workload}
    name = f"w{workload['size']}"
    return Record(
        Cell(f"{workload}{variant}{repeat}", "s", name, variant, variant, repeat, 0, config), status, reason
    )


def test_what_is_larger_than_what_ran_out_of_memory_is_named_and_not_tried():
    rules = SkipRules(["size", "micro_batch_size"])
    rules.note(record("ok", size=1, micro_batch_size=8, kind="x"))
    rules.note(record("out_of_memory", size=4, micro_batch_size=2, kind="x"))
    rules.note(record("out_of_memory", size=2, micro_batch_size=2, kind="x", reason="not tried: whatever"))
    assert rules.skip_reason(record("", size=2, micro_batch_size=4, kind="x").cell) is None
    assert rules.skip_reason(record("", size=8, micro_batch_size=2, kind="x").cell) == (
        Status.OUT_OF_MEMORY,
        "not tried: a ran out of memory on w4, which is no larger (size 4, micro_batch_size 2)",
    )
    assert rules.skip_reason(record("", size=8, micro_batch_size=1, kind="x").cell) is None
    assert rules.skip_reason(record("", size=3, micro_batch_size=64, kind="x").cell) is None
    assert (
        "again"
        in rules.skip_reason(
            record("", size=4, micro_batch_size=2, kind="x", repeat=1, source="elsewhere").cell
        )[1]
    )
    assert rules.skip_reason(record("", size=8, micro_batch_size=2, kind="y").cell) is None
    assert rules.skip_reason(record("", size=8, micro_batch_size=2, kind="x", variant="b").cell) is None


def test_without_a_size_every_cell_is_tried():
    rules = SkipRules([])
    rules.note(record("out_of_memory", size=1))
    assert rules.skip_reason(record("", size=2).cell) is None


def test_what_cannot_run_here_cannot_in_its_further_repeats():
    rules = SkipRules([])
    rules.note(record("unavailable", reason="no GPU", size=1))
    assert rules.skip_reason(record("", repeat=1, size=1).cell) == (Status.UNAVAILABLE, "no GPU")
    assert rules.skip_reason(record("", repeat=1, size=2).cell) is None
    assert rules.skip_reason(record("", variant="b", repeat=1, size=1).cell) is None
