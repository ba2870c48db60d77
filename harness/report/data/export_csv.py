"""Return every sample of a run as a row of a table: measurements.csv, for a notebook or a spreadsheet."""

from __future__ import annotations

from collections.abc import Sequence

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
