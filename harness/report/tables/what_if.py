"""Make a table, and controls for the page, of values recorded for combinations of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.data.result_index import ResultIndex, Value
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import PageControl, Picker, Table, TableCell, show

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
