"""Make the table of efficiencies: each variant's on every platform, and its performance portability."""

from __future__ import annotations

from collections.abc import Mapping

from harness.report.data.efficiency import (
    application,
    architectural,
    performance_portability,
    platforms,
    time_of,
)
from harness.report.data.result_index import ResultIndex
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Table, TableCell
from harness.units import marked


def portability_table(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per variant: how many platforms it supports, both means, each efficiency."""
    fields = block.fields
    places = platforms(index, fields)
    by_time, by_rate = application(index, fields), architectural(index, fields)
    rows = []
    for variant, efficiencies in by_time.items():
        first = next(value for place in places if (value := time_of(index, place, variant, fields)))
        supported = sum(1 for one in efficiencies.values() if one > 0)
        cells = [
            TableCell(spec.name("optimization", variant), look="word"),
            TableCell(f"{supported} of {len(places)}", first.cell),
            _mean(efficiencies, first.origin, first.cell),
            _mean(by_rate[variant], first.origin, first.cell),
        ]
        for place in places:
            value = time_of(index, place, variant, fields)
            cells.append(
                TableCell(_share(efficiencies[place]), value.cell) if value else TableCell("0", look="muted")
            )
        rows.append((-performance_portability(list(efficiencies.values())), tuple(cells)))
    header = (
        "Variant",
        "Platforms",
        "PP, application",
        "PP, architectural",
        *(spec.name("workload", place).partition(" (")[0] for place in places),
    )
    ordered = tuple(cells for _, cells in sorted(rows, key=lambda row: row[0]))
    return Table(block.id, block.title, block.text, header, ordered, ())


def _mean(efficiencies: Mapping[str, float], origin: str, cell: str) -> TableCell:
    if not efficiencies:
        return TableCell("–", look="muted")
    return TableCell(marked(_share(performance_portability(list(efficiencies.values()))), origin), cell)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %" if value else "0"
