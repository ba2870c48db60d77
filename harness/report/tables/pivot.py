"""Make the tables that conf/report/ describes column by column.

Make a table, and controls for the page, of values recorded for combinations of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.claims.model import Claim
from harness.report.data.result_index import ResultIndex, Value
from harness.report.data.speedup import change
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import (
    Footnotes,
    PageControl,
    Picker,
    Table,
    TableCell,
    divided,
    missing,
    show,
)
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


PickedValues = dict[str, str]
"""Input to value, both as the methods write them."""


def what_if(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return the start's values, then those of each combination that changes one input of it."""
    values = _values(block, index)
    controls, metrics = block.fields["controls"], block.fields["metrics"]
    header = ("Changed", *(metric["title"] for metric in metrics.values()))
    choices = {key: _choices(key, values) for key in controls}
    start = {key: control["start"] for key, control in controls.items()}
    empty = Table(block.id, block.title, block.text, header, ())
    if not values or _method(start) not in values:
        return empty
    places = [("nothing", start)]
    places += [
        (f"{controls[key]['title']}: {_read(controls[key], value)}", {**start, key: value})
        for key in controls
        for value in choices[key]
        if value != start[key]
    ]
    rows = tuple(_row(name, values.get(_method(place)), metrics) for name, place in places)
    return empty._replace(rows=rows, picker=_picker(block, values, choices, start))


def _values(block: ReportBlock, index: ResultIndex) -> dict[str, dict[str, Value]]:
    """Return the values of each method that names a combination of all controls, by metric."""
    fields, found = block.fields, dict[str, dict[str, Value]]()
    for metric in fields["metrics"]:
        where = {**fields["where"], "optimization": fields["optimization"]}
        for value in index.select(metric, where):
            if list(_parsed(value.method)) == list(fields["controls"]):
                found.setdefault(value.method, {})[metric] = value
    return found


def _parsed(method: str) -> PickedValues:
    """Return the inputs that a method names, in its order; none where it names none."""
    parts = [part.partition("=") for part in method.split(", ")]
    return {key: value for key, equals, value in parts if equals}


def _method(choice: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in choice.items())


def _choices(key: str, values: Mapping[str, Any]) -> list[str]:
    """Return the recorded values of an input, in ascending order where they are numbers."""
    every = list(dict.fromkeys(_parsed(method)[key] for method in values))
    try:
        return sorted(every, key=float)
    except ValueError:
        return every


def _read(control: Mapping[str, Any], value: str) -> str:
    """Return a value as people read it."""
    names = {str(key): name for key, name in control["names"].items()}
    return str(names.get(value, value))


def _row(name: str, values: Mapping[str, Value] | None, metrics: Mapping[str, Any]) -> tuple[TableCell, ...]:
    found = values or {}
    cells = (
        TableCell(show(found[metric], shown["unit"]), found[metric].cell)
        if metric in found
        else TableCell("–")
        for metric, shown in metrics.items()
    )
    return (TableCell(name, look="word"), *cells)


def _picker(
    block: ReportBlock,
    values: Mapping[str, Mapping[str, Value]],
    choices: Mapping[str, Sequence[str]],
    start: PickedValues,
) -> Picker:
    controls, metrics = block.fields["controls"], block.fields["metrics"]
    entries = {
        method: tuple(
            show(of[metric], shown["unit"]) if metric in of else "–" for metric, shown in metrics.items()
        )
        for method, of in values.items()
    }
    return Picker(
        tuple(
            PageControl(
                control["title"],
                tuple((f"{key}={value}", _read(control, value)) for value in choices[key]),
                f"{key}={start[key]}",
            )
            for key, control in controls.items()
        ),
        tuple(metric["title"] for metric in metrics.values()),
        entries,
        _method(start),
        next(iter(values[_method(start)].values())).cell,
    )
