"""Make the tables that conf/report/ describes column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.claims.model import Claim
from harness.report.data.result_index import ResultIndex
from harness.report.data.speedup import change
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Footnotes, Table, TableCell, divided, missing, show
from harness.units import best_unit, without_unit


def pivot(block: ReportBlock, spec: Spec, index: ResultIndex, claims: Sequence[Claim]) -> Table:
    """Return rows by one key, in which each column shows a value of its own."""
    fields, notes = block.fields, Footnotes()
    key = fields["rows"]
    fixed = {"workload": fields["where"]["workload"]} if fields["workload"] else {}
    only = fields["where"].get("workload", "")
    only = only if isinstance(only, str) else ""
    columns = [
        {**one, "workload": one["workload"] or only, **fixed}
        for column in fields["columns"]
        for one in _spread(column, spec, index, fields["where"])
    ]
    rows = []
    for name in index.names(key, fields["where"]):
        places = [{**column, key: name} for column in columns]
        tried = [_entry(column, index, claims, Footnotes()) for column in places]
        if any(cell.cell or cell.look in ("bad", "warn") for cell in tried):
            cells = [_entry(column, index, claims, notes) for column in places]
            rows.append((TableCell(spec.name(key, name), look="word"), *cells))
    header = (fields["heading"] or key.capitalize(), *(column["title"] for column in columns))
    return Table(block.id, block.title, block.text, header, tuple(rows), tuple(notes.texts))


def _spread(
    column: Mapping[str, Any], spec: Spec, index: ResultIndex, where: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the column itself, or with `by` one for each value of that key that has its metric."""
    by = column["by"]
    if not by:
        return [column]
    wanted = {**where, **({"method": column["method"]} if column["method"] else {})}
    return [
        {**column, by: name, "title": (column["title"] or "{}").format(spec.name(by, name))}
        for name in index.names(by, wanted, column["metric"])
    ]


def _entry(
    column: Mapping[str, Any], index: ResultIndex, claims: Sequence[Claim], notes: Footnotes
) -> TableCell:
    if column["condition"]:
        return _stated(column, index)
    first = _quoted(column, claims) if column["claim"] else _shown(column, index, notes)
    if first is None:
        return TableCell("")
    if not column["also"] or first.look:
        return first
    places = {key: column[key] for key in ("workload", "optimization", "method") if not column["also"][key]}
    second = _entry({**column["also"], **places, "title": column["title"]}, index, claims, notes)
    mark = first.text[-2:]
    if mark[0] == " " and second.text.endswith(mark):  # one origin, one mark
        return first._replace(text=f"{first.text[:-2]} ({second.text[:-2]}){mark}")
    return first._replace(text=f"{first.text} ({second.text})")


def _stated(column: Mapping[str, Any], index: ResultIndex) -> TableCell:
    """Return a condition of a cell's record as text; nothing where there is no record."""
    workload, variant = column["workload"], column["optimization"]
    records = index.cells.get((workload, variant))
    if not records:
        return TableCell("")
    return TableCell(index.condition(workload, variant, column["condition"]), records[0].cell.id, "word")


def _quoted(column: Mapping[str, Any], claims: Sequence[Claim]) -> TableCell | None:
    wanted = column["claim"].format(workload=column["workload"], optimization=column["optimization"])
    claim = next((claim for claim in claims if claim.id == wanted), None)
    return None if claim is None else TableCell(without_unit(claim.value, claim.unit, column["unit"]))


def _shown(column: Mapping[str, Any], index: ResultIndex, notes: Footnotes) -> TableCell:
    place = {key: column[key] for key in ("workload", "optimization", "metric", "method")}
    value = index.get(**place)
    if value is None:
        return missing(index, notes, place, column["title"])
    if column["relative_to"]:
        return change(index, notes, value, column["relative_to"], column["draws"], column["speed_up"])
    low, high = value.of_repeats.get(column["statistic"], (0.0, 0.0))
    value = value._replace(median=getattr(value, column["statistic"]))
    if column["per"]:
        divided_by = divided(value, index, column["per"])
        if divided_by is None:
            return missing(index, notes, {**place, "metric": column["per"], "method": ""}, column["title"])
        value = divided_by
    note = index.note(value.workload, value.optimization, value.method) if column["notes"] else ""
    mark = f" {notes.mark(note)}" if note else ""
    text = show(value, column["unit"], column["signed"])
    if column["range"] and not column["per"]:
        shown = best_unit(value.median, value.unit) if column["unit"] == "auto" else column["unit"]
        ends = [without_unit(end, value.unit, shown) for end in (low, high)]
        if ends[0] != ends[1]:
            number, space, origin = text.rpartition(" ")
            text = f"{number} ({' … '.join(ends)}){space}{origin}"
    return TableCell(text, value.cell, note=mark)
