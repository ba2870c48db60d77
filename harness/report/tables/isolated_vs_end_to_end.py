"""Show what an operation gains alone next to what the full step gains where it alone is replaced."""

from __future__ import annotations

from harness.report.data.result_index import ResultIndex
from harness.report.data.speedup import SIGNS_LEGEND
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.effect_tables import speed_up_cell, timed_variants
from harness.report.tables.tables import Footnotes, Table, TableCell


def isolated_vs_end_to_end(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return, per row and variant that was timed, the speed-up on one workload and that on another."""
    fields, notes = block.fields, Footnotes()
    rows = []
    for label, pair in fields["rows"].items():
        both = [pair["isolated"], pair["end_to_end"]]
        where = {**fields["where"], "workload": both}
        for variant in timed_variants(index, both, index.names("optimization", where), fields)[0]:
            cells = [speed_up_cell(index, notes, workload, variant, fields) for workload in both]
            name = TableCell(spec.name("optimization", variant), look="word")
            rows.append((TableCell(label, look="word"), name, *cells))
    header = (fields["heading"] or "Part", "Optimization", fields["isolated"], fields["end_to_end"])
    text = f"{block.text} {SIGNS_LEGEND}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))
