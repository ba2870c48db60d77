"""Export every sample of a run as a row of a table: measurements.csv, and of several as measurements.parquet.

Return every sample of a run as a row of a table: measurements.csv, for a notebook or a spreadsheet.

Write the samples of several suites into one tidy table: measurements.parquet, a row per sample.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.records import Record

CELL = ["workload", "optimization", "repeat", "status", "cell"]
COLUMNS = [*CELL, "metric", "method", "origin", "unit", "sample", "value"]
MACHINE = "machine"


def samples_table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per sample, in base units and in the order of the records, and its machine's digest."""
    rows = [
        (
            record.cell.workload,
            record.cell.optimization,
            record.cell.repeat,
            str(record.status),
            record.cell.id,
            one.metric,
            one.method,
            str(one.origin),
            one.unit,
            sample,
            value,
            record.machine,
        )
        for record in records
        for one in record.measurements
        for sample, value in enumerate(one.samples)
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, MACHINE]).astype({"value": "float64"})


def measurements_csv(records: Sequence[Record]) -> str:
    """Return measurements.csv: a row per sample; a cell without a sample has one row with its status."""
    table = samples_table(records)[COLUMNS]
    empty = [
        (
            record.cell.workload,
            record.cell.optimization,
            record.cell.repeat,
            str(record.status),
            record.cell.id,
        )
        for record in records
        if not any(one.samples for one in record.measurements)
    ]
    table = pd.concat([table, pd.DataFrame(empty, columns=CELL)], ignore_index=True) if empty else table
    table = table.astype({"sample": "Int64"})
    order = ["workload", "optimization", "repeat", "cell"]
    return str(
        table.sort_values(order, kind="stable", ignore_index=True).to_csv(index=False, lineterminator="\n")
    )


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
