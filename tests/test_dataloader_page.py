"""The dataloader page: its values are those of the committed records."""

from statistics import mean, median

import pytest

from harness.code_fingerprint import ROOT
from harness.records import measurement
from harness.store import read_records

RECORDS = read_records(ROOT / "results/reference/dataloader")
PAGE = (ROOT / "docs/dataloader.md").read_text()
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
TRAINED = {
    "torch DataLoader": "baseline",
    "WebDataset": "webdataset",
    "SPDL": "spdl",
    "Grain, mixed at MapDataset": "grain_map_mix",
    "disaggregated, pieces in order": "disaggregated",
    "disaggregated, by cost": "disaggregated_balanced",
}


def rounds(workload, optimization, metric, method=""):
    """Return the median of each process."""
    found = [one for one in RECORDS if (one.cell.workload, one.cell.optimization) == (workload, optimization)]
    return [median(given.samples) for one in found if (given := measurement(one, metric, method))]


def first_number(text):
    return float(text.split()[0].replace(",", ""))


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
    assert first_number(memory) == pytest.approx(median(values) / 1e9, rel=0.006, abs=0.006)
    first_s = rounds(workload, LOADERS[title], "time_to_first_batch")
    assert first_number(first) == pytest.approx(median(first_s), rel=0.03, abs=0.006)
    assert first_number(rate) == pytest.approx(
        median(rounds(workload, LOADERS[title], "throughput")) / 1e6, rel=0.015
    )
    if "files" in memory:
        files_B = rounds(workload, LOADERS[title], "temporary_files")
        assert first_number(memory.split(", ")[1]) == pytest.approx(median(files_B) / 1e9, rel=0.01)
    if "for Ray" in first:
        ray_s = rounds(workload, LOADERS[title], "ray_start")
        assert first_number(first.split("+ ")[1]) == pytest.approx(median(ray_s), rel=0.02)


@pytest.mark.parametrize("title", TRAINED)
def test_a_row_of_training_has_the_medians(title):
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith(f"  | {title} |")]
    tokens, flop, imbalance, waiting = [cell.strip() for cell in lines[0].strip("|").split("|")[1:]]
    own = TRAINED[title]
    assert first_number(tokens) == pytest.approx(median(rounds("train_dp2", own, "throughput")), rel=0.002)
    rates = rounds("train_dp2", own, "flop_rate", "FLOP of the documents seen")
    low, high = flop.split("(")[1].strip(")").split("–")
    for text, value in ((flop, median(rates)), (low, min(rates)), (high, max(rates))):
        assert first_number(text) == pytest.approx(value / 1e9, rel=0.01)
    shares = [
        mean(measurement(one, "imbalance", "").samples)
        for one in RECORDS
        if (one.cell.workload, one.cell.optimization) == ("train_dp2", own)
    ]
    assert first_number(imbalance) == pytest.approx(median(shares), abs=0.006)
    waits = rounds("train_dp2", own, "waiting_share", "slowest rank of each step")
    assert first_number(waiting) / 100 == pytest.approx(median(waits), abs=6e-5)


def test_less_memory_and_more_throughput_than_every_loader_that_reads_ahead():
    for workload in ("memory_parquet_306_8", "memory_jsonl_306_8"):
        ours = median(rounds(workload, "disaggregated", "throughput"))
        others = {one.cell.optimization for one in RECORDS if one.cell.workload == workload}
        for other in others - {"disaggregated", "disaggregated_autoscaled", "synchronous"}:
            values = rounds(workload, other, "throughput")
            assert not values or median(values) < ours
    ratio = median(rounds("memory_parquet_306_8", "baseline", "memory", ALL)) / median(
        rounds("memory_parquet_306_8", "disaggregated", "memory", ALL)
    )
    assert round(ratio) == 14
