"""Skip rules: what the end of one cell implies for larger shapes and further repeats."""

from harness.records import Cell, Record, Status
from harness.sweep.runner import SkipRules


def record(status, variant="a", reason="", repeat=0, **workload):
    name, config = f"w{workload['size']}", {"workload": workload}
    cell = Cell(f"{workload}{variant}{repeat}", "s", name, variant, variant, repeat, 0, config)
    return Record(cell, status, reason)


def reason_of(rules, **fields):
    """Return the status and reason without which a cell would be tried."""
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
