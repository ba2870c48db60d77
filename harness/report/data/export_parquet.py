"""Write the samples of several suites into one tidy table: measurements.parquet, a row per sample."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.records import Record
from harness.report.data.export_csv import samples_table

ENGINE = "pyarrow"


def write_measurements(folder: Path, records: Mapping[str, Sequence[Record]]) -> str:
    """Write measurements.parquet, records given by suite, into the folder; return a sentence on it.

    Without pyarrow, which is part of the extra `parquet`, it is measurements.csv.
    """
    tables = [samples_table(own).assign(suite=suite) for suite, own in records.items() if own]
    every = pd.concat(tables, ignore_index=True)
    every = every[["suite", *(name for name in every.columns if name != "suite")]]
    if importlib.util.find_spec(ENGINE) is None:
        path = folder / "measurements.csv"
        every.to_csv(path, index=False)
        return f"Every sample: {path} (as Parquet with pip install 'throughput-harness[parquet]')"
    path = folder / "measurements.parquet"
    every.to_parquet(path, engine="pyarrow", index=False)
    return f"Every sample: {path}"
