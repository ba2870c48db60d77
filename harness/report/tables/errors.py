"""Show how far each method is off, over all cells in which the truth was measured."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Table, TableCell, percent
from harness.units import marked


class Errors(NamedTuple):
    """How far one method is off: relative errors over cells, signed."""

    method: str
    cells: int
    median: float
    worst: float
    worst_at: Value
    under: float  # share of cells in which it underestimates
    lowest: float  # the lowest error: the worst underestimate, where below zero
    worst_sample: float  # of a single sample; the other errors are of each cell's median
    several: bool  # whether a cell has several samples
    each: tuple[float, ...] = ()  # of every cell


def error_rows(block: ReportBlock, index: ResultIndex) -> list[Errors]:
    """Return one row per method, the most accurate first."""
    groups: dict[str, list[Value]] = {}
    for value in index.select(block.fields["metric"], block.fields["where"]):
        groups.setdefault(value.method, []).append(value)
    rows = []
    for method, values in groups.items():
        worst = max(values, key=lambda one: abs(one.median))
        median = statistics.median(abs(one.median) for one in values)
        under = sum(one.median < 0 for one in values) / len(values)
        lowest = min(one.median for one in values)
        sample = max((end for one in values for end in (one.min, one.max)), key=abs)
        several = any(one.min < one.max for one in values)
        each = tuple(one.median for one in values)
        rows.append(
            Errors(method, len(values), median, worst.median, worst, under, lowest, sample, several, each)
        )
    return sorted(rows, key=lambda row: (row.median, row.method))


def errors(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return each method with its median error, the worst and where, and how often it underestimates.

    Where cells have several samples, also the worst of a single one.
    """
    rows = []
    found = error_rows(block, index)
    several = any(row.several for row in found)
    for row in found:
        place = ", ".join(spec.name(key, getattr(row.worst_at, key)) for key in ("optimization", "workload"))
        rows.append(
            (
                TableCell(spec.name("method", row.method), look="word"),
                TableCell(str(row.cells)),
                TableCell(marked(percent(row.median), row.worst_at.origin)),
                TableCell(marked(percent(row.worst, True), row.worst_at.origin), row.worst_at.cell),
                TableCell(place, row.worst_at.cell, "word"),
                TableCell(percent(row.under)),
                TableCell(marked(percent(row.lowest, True), row.worst_at.origin) if row.under else "–"),
                *(
                    [TableCell(marked(percent(row.worst_sample, True), row.worst_at.origin))]
                    if several
                    else []
                ),
            )
        )
    header = (
        "Method",
        "Cells",
        "Median |error|",
        "Worst error",
        "Worst at",
        "Underestimates in",
        "Worst underestimate",
        *(["Worst single sample"] if several else []),
    )
    return Table(block.id, block.title, block.text, header, tuple(rows))
