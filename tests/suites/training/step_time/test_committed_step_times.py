"""What suites calculate with the step-time model today is what the committed records have."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from harness.config import protocols
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import code_of
from harness.records import Record, Status
from harness.sweep.store import read_records

SUITES = ("interconnect_formula", "limits", "overlap_schedule")


def quick(record: Record) -> bool:
    """Return whether it takes no search over layouts, which takes seconds per cell."""
    return record.status == Status.OK and record.cell.config["workload"].get("kind") not in (
        "curve",
        "what_if",
        "run",
    )


def recomputed(record: Record) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield each reading of a record's cell, taken now, as (metric, method) and value."""
    cell = record.cell
    suite: Any = import_module(code_of(cell.suite).module)
    subject = suite.build(cell.config["workload"], cell.seed)
    if cell.module != "baseline":
        module = protocols.optimization_module(code_of(cell.suite), cell.module)
        subject = protocols.apply(module, subject, cell.config["settings"])
    for one in suite.sample(subject):
        yield (one.metric, one.method), one.value


@pytest.mark.parametrize("suite", SUITES)
def test_committed_values_are_calculated_again(suite: str) -> None:
    records = [one for one in read_records(ROOT / "results/reference" / suite) if quick(one)]
    assert len(records) >= 9
    for record in records:
        kept = [((one.metric, one.method), value) for one in record.measurements for value in one.samples]
        now = list(recomputed(record))
        assert sorted(key for key, _ in now) == sorted(key for key, _ in kept)
        for key in {key for key, _ in kept}:
            ours, theirs = ([v for k, v in side if k == key] for side in (now, kept))
            assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True), (record.cell.workload, key)
