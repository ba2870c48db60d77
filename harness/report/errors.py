"""How far each method is off, over all cells in which the truth was measured."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from harness.report.frame import Figure, Frame
from harness.report.spec import Block, Spec
from harness.report.tables import Table, Text, percent
from harness.units import marked


class Errors(NamedTuple):
    """How far one method is off: relative errors over cells, signed."""

    method: str
    cells: int
    median: float
    worst: float
    worst_at: Figure
    under: float  # share of cells in which it says less than there is
    least: float  # the lowest error: how much too little it says at most, where below zero


def error_rows(block: Block, frame: Frame) -> list[Errors]:
    """One row a method, the most accurate first."""
    groups: dict[str, list[Figure]] = {}
    for figure in frame.select(block.fields["metric"], block.fields["where"]):
        groups.setdefault(figure.method, []).append(figure)
    rows = []
    for method, figures in groups.items():
        worst = max(figures, key=lambda f: abs(f.value))
        median = statistics.median(abs(f.value) for f in figures)
        under = sum(f.value < 0 for f in figures) / len(figures)
        least = min(f.value for f in figures)
        rows.append(Errors(method, len(figures), median, worst.value, worst, under, least))
    return sorted(rows, key=lambda row: (row.median, row.method))


def errors(block: Block, spec: Spec, frame: Frame) -> Table:
    """Each method: its median error, the worst and where, how often it says too little."""
    rows = []
    for row in error_rows(block, frame):
        place = ", ".join(spec.name(key, getattr(row.worst_at, key)) for key in ("optimization", "workload"))
        rows.append(
            (
                Text(spec.name("method", row.method), look="word"),
                Text(str(row.cells)),
                Text(marked(percent(row.median), row.worst_at.origin)),
                Text(marked(percent(row.worst, True), row.worst_at.origin), row.worst_at.cell),
                Text(place, row.worst_at.cell, "word"),
                Text(percent(row.under)),
                Text(marked(percent(row.least, True), row.worst_at.origin) if row.under else "–"),
            )
        )
    header = ("Method", "Cells", "Median |error|", "Worst", "Worst at", "Too little in", "By at most")
    return Table(block.id, block.title, block.text, header, tuple(rows))
