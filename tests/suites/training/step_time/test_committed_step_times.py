"""What suites calculate by the step-time model or the account today is what committed records have."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module

import pytest

from harness.config import protocols
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import code_of
from harness.records import Reading, Status
from harness.sweep.store import read_records

SLOW = ("curve", "what_if", "run")
"""Kinds of workloads that search over layouts, which takes seconds per cell, as dry runs do."""
SUITES = ("interconnect_formula", "limits", "overlap_schedule", "step_gains", "memory_published")


@pytest.mark.parametrize("suite", SUITES)
def test_committed_values_are_calculated_again(suite):
    records = [one for one in read_records(ROOT / "results/reference" / suite) if one.status == Status.OK]
    quick = [
        one
        for one in records
        if not {*SLOW} & set(map(str, one.cell.config["workload"].values()))
        and not any(reading.method == "fake_step" for reading in one.measurements)
    ]
    assert len(quick) >= 9
    for record in quick:
        cell, kept, now = record.cell, defaultdict(list), defaultdict(list)
        for one in record.measurements:
            kept[one.metric, one.method] += one.samples
        module = import_module(code_of(cell.suite).module)
        subject = module.build(cell.config["workload"], cell.seed)
        if cell.module != "baseline":
            changes = protocols.optimization_module(code_of(cell.suite), cell.module)
            subject = protocols.apply(changes, subject, cell.config["settings"])
        for one in module.sample(subject):
            if isinstance(one, Reading):
                now[one.metric, one.method].append(one.value)
        assert now.keys() == kept.keys()
        for key, values in kept.items():
            assert now[key] == pytest.approx(values, rel=1e-9, nan_ok=True), (cell.workload, key)
