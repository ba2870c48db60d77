"""How long the harness itself takes: `pytest tests/benchmarks --benchmark-only`. Shown, never asserted."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import Variant
from harness.config.run import load
from harness.records import Cell, Measurement, Record, record_to_json
from harness.sweep.plan import plan
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference/memory"


def command(*words):
    subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True)


@pytest.mark.benchmark(group="parent")
@pytest.mark.parametrize("words", [["--help"], ["suite=memry"], ["suite=memory", "repeat=2"]], ids=" ".join)
def test_parent(benchmark, words):
    benchmark(command, "-m", "harness", *words)


@pytest.mark.benchmark(group="parent")
def test_from_results(benchmark, tmp_path):
    benchmark(command, "-m", "harness", f"from_results={REFERENCE}", f"out={tmp_path}")


@pytest.mark.benchmark(group="many")
def test_plan_of_100_000_cells(benchmark):
    run = load(["suite=memory"])[0]
    workloads = {f"w{i}": next(iter(run.workloads.values())) for i in range(2000)}
    variants = tuple(Variant(f"o{i}", f"o{i}", {"x": i}) for i in range(10))
    large = replace(run, workloads=workloads, variants=variants, repeats=5)
    groups = benchmark(plan, large, "environment", lambda variant: "code")
    assert sum(len(group.cells) for group in groups) == 100_000


@pytest.mark.benchmark(group="many")
def test_read_100_000_records(benchmark, tmp_path: Path):
    workload = next(iter(load(["suite=memory"])[0].workloads.values()))
    eight = tuple(Measurement(f"m{i}", "B", "simulated", "fake_step", (1.5e9,)) for i in range(8))
    with (tmp_path / "records.jsonl").open("w") as file:
        for i in range(100_000):
            config = {"workload": workload, "settings": {}}
            cell = Cell(f"{i:016x}", "memory", f"w{i % 50}", "baseline", "baseline", 0, 0, config)
            file.write(record_to_json(Record(cell, "ok", measurements=eight)) + "\n")
    assert len(benchmark(read_records, tmp_path)) == 100_000
