"""The dataloader page: its values are those of the committed records."""

from math import floor, log10
from statistics import median

import pytest

from harness.config.code_fingerprint import ROOT
from harness.records import measurement
from harness.sweep.store import read_records

RECORDS = read_records(ROOT / "results/reference/dataloader")
PAGE = (ROOT / "docs/suites/dataloader.md").read_text()
ALL = "all processes and shared memory"

LOADERS = {
    "torch DataLoader": "baseline",
    "the same with our Parquet reader": "torch_spooled_parquet",
    "torchdata.nodes": "torchdata_nodes",
    "WebDataset (reads tar shards)": "webdataset",
    "SPDL": "spdl",
    "Grain, mixed at MapDataset": "grain_map_mix",
    "**disaggregated**": "disaggregated",
    "the same, balanced and autoscaled": "disaggregated_autoscaled",
    "DataLoader without workers (nothing reads ahead)": "synchronous",
}


def rounds(workload, optimization, metric, method=""):
    """Return the median of each process."""
    found = [one for one in RECORDS if (one.cell.workload, one.cell.optimization) == (workload, optimization)]
    return [median(given.samples) for one in found if (given := measurement(one, metric, method))]


def shown(value, digits):
    """Return a value with so many significant digits."""
    decimals = max(digits - 1 - floor(log10(value)), 0)
    return f"{value:.{decimals}f}"


@pytest.mark.parametrize("title", LOADERS)
@pytest.mark.parametrize(("column", "workload"), [(0, "memory_parquet_306_8"), (3, "memory_jsonl_306_8")])
def test_a_row_of_the_first_table_has_the_medians(title, column, workload):
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| {title} |")]
    memory, first, rate = [cell.strip() for cell in lines[0].strip("|").split("|")[1:]][column : column + 3]
    values = rounds(workload, LOADERS[title], "memory", ALL)
    if memory == "–":
        assert not values
        return
    assert len(values) == 3
    assert memory.startswith(shown(median(values) / 1e9, 3))
    assert first.startswith(f"{shown(median(rounds(workload, LOADERS[title], 'time_to_first_batch')), 2)} s")
    million = median(rounds(workload, LOADERS[title], "throughput")) / 1e6
    assert rate == shown(million, 2 if million < 100 else 3)
