"""Every sample of a run as one row of a table, for a notebook or a spreadsheet: measurements.csv."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.records import Record

PLACE = ["workload", "optimization", "repeat", "status", "cell"]
COLUMNS = [*PLACE, "metric", "method", "origin", "unit", "sample", "value"]


def tidy(records: Sequence[Record]) -> pd.DataFrame:
    """One row a sample, in base units; a cell without a figure has one row that says its status."""
    rows: list[tuple[object, ...]] = []
    for record in records:
        cell = record.cell
        place = (cell.workload, cell.optimization, cell.repeat, record.status, cell.id)
        samples = [
            (*place, one.metric, one.method, one.origin, one.unit, index, value)
            for one in record.measurements
            for index, value in enumerate(one.samples)
        ]
        rows.extend(samples or [(*place, None, None, None, None, None, None)])
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"sample": "Int64"})
    return table.sort_values(["workload", "optimization", "repeat", "cell"], kind="stable", ignore_index=True)
