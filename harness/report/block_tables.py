"""Make the tables that more than one suite's report has."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.claims.model import Claim
from harness.report.comparison import (
    LOOKS,
    SIGNS_LEGEND,
    change,
    compared,
    comparison_cell,
    compile_break_even,
    speed_up_cell,
    steps_text,
)
from harness.report.results import ResultIndex, Value
from harness.report.spec import (
    Block,
    Column,
    EffectsBlock,
    ErrorsBlock,
    Metric,
    Pairing,
    Spec,
    SpeedupsBlock,
    TableBlock,
    WhatIfBlock,
    Where,
)
from harness.report.tables import (
    DASH,
    PageControl,
    Picker,
    Table,
    TableCell,
    divided,
    missing,
    percent,
    show,
    word,
)
from harness.report.training import DERIVED, SHOWN_IN, TITLES, TOKENS, title
from harness.units import best_unit, marked, without_unit

BREAK_EVEN = "break_even"
"""Among a block's `extra_metrics`: after how many steps the variant's compile time has been saved."""


def effects(block: EffectsBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return each workload and variant: its conditions, its metric, the change, and what that means."""
    workloads = index.names("workload", block.where)
    several = len(workloads) > 1
    extras = {
        metric: Metric(title=one) if isinstance(one, str) else one
        for metric, one in block.extra_metrics.items()
    }
    if block.training:
        extras |= training_columns(index, block)
    stated = {name for record in index.records for name in record.conditions}
    conditions = {name: heading for name, heading in block.conditions.items() if name in stated}
    rows: list[tuple[TableCell, ...]] = []
    unit, intervals, judged = "", False, block.better != "neither"
    for workload in workloads:
        variants = [one for one in index.names("optimization", block.where) if (workload, one) in index.cells]
        values = {one: index.get(workload, one, block.metric, block.method) for one in variants}
        unit = next((value.unit for value in values.values() if value), unit)
        longest = max((value.median for value in values.values() if value), default=0.0) or 1.0
        for variant, value in values.items():
            comparison = compared(index, workload, variant, block.pairing)
            intervals |= comparison is not None and comparison.has_ends
            rows.append((
                *([word(spec.name("workload", workload))] if several else []),
                word(spec.name("optimization", variant)),
                *(TableCell(index.condition(workload, variant, one)) for one in conditions),
                *_effect(block, spec, index, workload, variant, longest)[: 3 if judged else 2],
                *(_extra(block, spec, index, value, *one) for one in extras.items()),
            ))  # fmt: skip
    header = (
        *(["Workload"] if several else []),
        "Optimization",
        *conditions.values(),
        spec.name("metric", block.metric) + ("" if block.unit == "auto" else f", {block.unit}"),
        "Change" if unit != "s" else "Speed-up (95 % interval)" if intervals else "Speed-up",
        *(["Effect"] if judged else []),
        *(one.title for one in extras.values()),
    )
    text = f"{block.text} {own_model(index, workloads)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), optional=len(extras))


def own_model(index: ResultIndex, workloads: Sequence[str]) -> str:
    """Return which model was trained, in a sentence, where a user's config.json is the only workload."""
    ours = (one for one in index.records if one.cell.workload in workloads)
    first = next((one for one in ours if "model_code" in one.conditions), None)
    fields = first.cell.config.get("workload", {}) if first else {}
    if first is None or len(workloads) != 1 or not fields.get("hf_config"):
        return ""
    return f"The model is that of {fields['source']}, built by {first.conditions['model_code']}."


def training_columns(index: ResultIndex, block: EffectsBlock) -> dict[str, Metric]:
    """Return the columns of a training step: what is derived from its tokens, and a recorded peak in GiB."""
    columns = {}
    if index.select(TOKENS, block.where):
        columns = {one: Metric(title=title(one, index, block.where), unit=SHOWN_IN[one]) for one in DERIVED}
    if block.metric != "peak_memory" and index.select("peak_memory", block.where):
        columns["peak_memory"] = Metric(title="Peak per device, GiB", unit="GiB")
    return columns


def _effect(
    block: EffectsBlock, spec: Spec, index: ResultIndex, workload: str, variant: str, longest: float
) -> tuple[TableCell, ...]:
    """Return a variant's value, its change against the baseline, and what that means."""
    place = workload, variant, block.metric, block.method
    value = index.get(*place)
    if value is None:
        absent = missing(index, place, spec.name("metric", block.metric))
        return absent, TableCell(""), TableCell("unavailable", look="muted")
    shown = TableCell(show(value, block.unit), value.cell, bar=value.median / longest)
    if variant == block.baseline:
        return shown, TableCell(""), TableCell("baseline", look="muted")
    ratio, effect = comparison_cell(index, workload, variant, block.pairing)
    return shown, ratio, TableCell(effect, look=LOOKS.get(effect, "muted"))


def _extra(
    block: EffectsBlock, spec: Spec, index: ResultIndex, of: Value | None, metric: str, one: Metric
) -> TableCell:
    """Return another metric of the cell, by its own method, the block's, or the first that was recorded."""
    if of is None:
        return DASH
    place = of.workload, of.optimization
    if metric == BREAK_EVEN:
        paid = compile_break_even(index, *place, block.pairing)
        return TableCell(steps_text(paid)) if paid else DASH
    method = one.method or block.method
    value = index.get(*place, metric, method) or (None if one.method else index.first(*place, metric))
    if value is None:
        return missing(index, (*place, metric, method), TITLES[metric]) if metric in DERIVED else DASH
    by = f", {spec.name('method', value.method)}" if value.method not in ("", method) else ""
    return TableCell(show(value, one.unit) + by, value.cell)


def speedups(block: SpeedupsBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per workload and a column per variant, each its speed-up."""
    workloads = index.names("workload", block.where)
    names = index.names("optimization", block.where)
    variants, absent = timed_variants(index, workloads, names, block.pairing)
    rows = []
    for workload in workloads:
        base = index.get(workload, block.baseline, block.metric, block.method)
        time = TableCell(show(base, "auto"), base.cell) if base else DASH
        cells = [speed_up_cell(index, workload, variant, block.pairing) for variant in variants]
        rows.append((word(spec.name("workload", workload)), time, *cells))
    header = (block.heading, *(spec.name("optimization", one) for one in (block.baseline, *variants)))
    left_out = ", ".join(spec.name("optimization", variant) for variant in absent)
    not_timed = f"Not timed on any of these: {left_out}." if left_out else ""
    text = f"{block.text} {SIGNS_LEGEND} {not_timed}".strip()
    return Table(block.id, block.title, text, header, tuple(rows))


def timed_variants(
    index: ResultIndex, workloads: Sequence[str], variants: Sequence[str], pairing: Pairing
) -> tuple[list[str], list[str]]:
    """Return the variants with a time on any of the workloads, and those without; never the baseline."""
    others = [one for one in variants if one != pairing.baseline]
    place = pairing.metric, pairing.method
    timed = [one for one in others if any(index.get(workload, one, *place) for workload in workloads)]
    return timed, [one for one in others if one not in timed]


class ColumnPlace(NamedTuple):
    """A column at one row: of which cell and by which method it shows a value."""

    workload: str
    optimization: str
    method: str

    def at(self, **names: str) -> ColumnPlace:
        """Return the same where a name is "", and at the workload, variant or method that is named."""
        return self._replace(**{key: name for key, name in names.items() if name})


def columns_table(block: TableBlock, spec: Spec, index: ResultIndex, claims: Sequence[Claim]) -> Table:
    """Return rows by one key, in which each column shows a value of its own."""
    key, heading = next(iter(block.rows.items()))
    only = block.where.get("workload", "")
    only = only if isinstance(only, str) else ""
    columns = [
        (one, title, place.at(workload=only) if block.workload or not place.workload else place)
        for one in block.columns
        for title, place in _spread(one, key, spec, index, block.where)
    ]
    rows = []
    for name in index.names(key, block.where):
        cells = [_entry(one, place.at(**{key: name}), title, index, claims) for one, title, place in columns]
        if any(cell.cell or cell.look in ("bad", "warn") for cell in cells):
            rows.append((word(spec.name(key, name)), *cells))
    header = (heading, *(title for _, title, _ in columns))
    return Table(block.id, block.title, block.text, header, tuple(rows))


def _spread(
    column: Column, key: str, spec: Spec, index: ResultIndex, where: Mapping[str, Any]
) -> Iterator[tuple[str, ColumnPlace]]:
    """Yield a column's heading and its place; with `by` one for each value of that key with its metric."""
    variant = column.optimization or ("baseline" if key != "optimization" else "")
    place = ColumnPlace(column.workload, variant, column.method)
    if not column.by:
        yield column.title, place
        return
    wanted = {**where, **({"method": column.method} if column.method else {})}
    for name in index.names(column.by, wanted, column.metric):
        yield (column.title or "{}").format(spec.name(column.by, name)), place.at(**{column.by: name})


def _entry(
    column: Column, place: ColumnPlace, heading: str, index: ResultIndex, claims: Sequence[Claim]
) -> TableCell:
    if column.condition:
        return _stated(column, place, index)
    first = _quoted(column, place, claims) if column.claim else _shown(column, place, heading, index)
    if column.also is None or first.look or not first.text:
        return first
    named = {key: getattr(column.also, key) for key in ColumnPlace._fields}
    second = _entry(column.also, place.at(**named), heading, index, claims)
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    mark = first.text[-2:]
    if mark[0] == " " and second.text.endswith(mark):  # one origin, one mark
        return first._replace(text=f"{first.text[:-2]} ({second.text[:-2]}){mark}", notes=notes)
    return first._replace(text=f"{first.text} ({second.text})", notes=notes)


def _stated(column: Column, place: ColumnPlace, index: ResultIndex) -> TableCell:
    """Return a condition of a cell's record as text; nothing where there is no record."""
    records = index.cells.get(place[:2])
    stated = index.condition(*place[:2], column.condition)
    return TableCell(stated, records[0].cell.id, "word") if records else TableCell("")


def _quoted(column: Column, place: ColumnPlace, claims: Sequence[Claim]) -> TableCell:
    wanted = column.claim.format(**place._asdict())
    claim = next((claim for claim in claims if claim.id == wanted), None)
    unit = "1" if column.unit == "auto" else column.unit
    return TableCell(without_unit(claim.value, claim.unit, unit) if claim else "")


def _shown(column: Column, place: ColumnPlace, heading: str, index: ResultIndex) -> TableCell:
    at = *place[:2], column.metric, place.method
    value = index.get(*at)
    if value is None:
        return missing(index, at, heading)
    if other := column.over or column.relative_to:
        return change(index, value, other, column.draws, bool(column.over))
    ends = value.of_repeats.get(column.statistic, (0.0, 0.0))
    value = value._replace(median=getattr(value, column.statistic))
    if column.per:
        value = divided(value, index, column.per)
        if value is None:
            return missing(index, (*place[:2], column.per, ""), heading)
    note = index.note(value.workload, value.optimization, value.method) if column.notes else ""
    text = show(value, column.unit, column.signed)
    if column.range and not column.per:
        unit = best_unit(value.median, value.unit) if column.unit == "auto" else column.unit
        low, high = (without_unit(end, value.unit, unit) for end in ends)
        if low != high:
            number, space, origin = text.rpartition(" ")
            text = f"{number} ({low} … {high}){space}{origin}"
    return TableCell(text, value.cell, notes=(note,) if note else ())


class Errors(NamedTuple):
    """How far one method is off: relative errors over cells, signed."""

    method: str
    median: float
    worst_at: Value
    under: float  # share of cells in which it underestimates
    lowest: float  # the lowest error: the worst underestimate, where below zero
    worst_sample: float  # of a single sample; the other errors are of each cell's median
    several: bool  # whether a cell has several samples
    each: tuple[float, ...]  # of every cell

    @property
    def worst(self) -> float:
        """Return the largest error."""
        return self.worst_at.median


def errors_by_method(index: ResultIndex, metric: str, where: Where) -> dict[str, list[Value]]:
    """Return the errors of each method, of each cell the median."""
    groups = defaultdict(list)
    for value in index.select(metric, where):
        groups[value.method].append(value)
    return groups


def error_rows(block: ErrorsBlock, index: ResultIndex) -> list[Errors]:
    """Return one row per method, the most accurate first."""
    rows = []
    for method, values in errors_by_method(index, block.metric, block.where).items():
        each = tuple(one.median for one in values)
        rows.append(
            Errors(
                method,
                median=statistics.median(map(abs, each)),
                worst_at=max(values, key=lambda one: abs(one.median)),
                under=sum(one < 0 for one in each) / len(each),
                lowest=min(each),
                worst_sample=max((end for one in values for end in (one.min, one.max)), key=abs),
                several=any(one.min < one.max for one in values),
                each=each,
            )
        )
    return sorted(rows, key=lambda row: (row.median, row.method))


def errors(block: ErrorsBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return each method with its median error, the worst and where, and how often it underestimates.

    Where cells have several samples, also the worst of a single one.
    """
    rows, found = [], error_rows(block, index)
    several = any(row.several for row in found)
    for row in found:
        at, origin = row.worst_at, row.worst_at.origin
        place = f"{spec.name('optimization', at.optimization)}, {spec.name('workload', at.workload)}"
        cells = (
            word(spec.name("method", row.method)),
            TableCell(str(len(row.each))),
            TableCell(marked(percent(row.median), origin)),
            TableCell(marked(percent(row.worst, True), origin), at.cell),
            TableCell(place, at.cell, "word"),
            TableCell(percent(row.under)),
            TableCell(marked(percent(row.lowest, True), origin) if row.under else "–"),
            TableCell(marked(percent(row.worst_sample, True), origin)),
        )
        rows.append(cells if several else cells[:-1])
    header = ("Method", "Cells", "Median |error|", "Worst error", "Worst at", "Underestimates in",
              "Worst underestimate", *(["Worst single sample"] if several else []))  # fmt: skip
    return Table(block.id, block.title, block.text, header, tuple(rows))


def what_if(block: WhatIfBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return the start's values, then those of each combination that changes one input of it."""
    values = _values(block, index)
    choices = {key: _choices(key, values) for key in block.controls}
    start = {key: control.start for key, control in block.controls.items()}
    header = ("Changed", *(metric.title for metric in block.metrics.values()))
    empty = Table(block.id, block.title, block.text, header, ())
    if _method(start) not in values:
        return empty
    places = [("nothing", start)]
    places += [
        (f"{control.title}: {control.names.get(value, value)}", {**start, key: value})
        for key, control in block.controls.items()
        for value in choices[key]
        if value != start[key]
    ]
    rows = []
    for name, place in places:
        of = values.get(_method(place), {})
        cells = [of[metric].cell if metric in of else "" for metric in block.metrics]
        rows.append((word(name), *map(TableCell, _texts(block, of), cells)))
    controls = tuple(
        PageControl(
            control.title,
            tuple((f"{key}={value}", control.names.get(value, value)) for value in choices[key]),
            f"{key}={control.start}",
        )
        for key, control in block.controls.items()
    )
    entries = {method: _texts(block, of) for method, of in values.items()}
    record = next(iter(values[_method(start)].values())).cell
    picker = Picker(controls, header[1:], entries, _method(start), record)
    return empty._replace(rows=tuple(rows), picker=picker)


def _texts(block: WhatIfBlock, of: Mapping[str, Value]) -> tuple[str, ...]:
    return tuple(show(of[name], one.unit) if name in of else "–" for name, one in block.metrics.items())


def _values(block: WhatIfBlock, index: ResultIndex) -> dict[str, dict[str, Value]]:
    """Return the values of each method that names a combination of all controls, by metric."""
    where, found = {**block.where, "optimization": block.optimization}, dict[str, dict[str, Value]]()
    for metric in block.metrics:
        for value in index.select(metric, where):
            if list(_parsed(value.method)) == list(block.controls):
                found.setdefault(value.method, {})[metric] = value
    return found


def _parsed(method: str) -> dict[str, str]:
    """Return the inputs that a method names, in its order; none where it names none."""
    parts = [part.partition("=") for part in method.split(", ")]
    return {key: value for key, equals, value in parts if equals}


def _method(choice: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in choice.items())


def _choices(key: str, values: Mapping[str, object]) -> list[str]:
    """Return the recorded values of an input, in ascending order where they are numbers."""
    every = list(dict.fromkeys(_parsed(method)[key] for method in values))
    try:
        return sorted(every, key=float)
    except ValueError:
        return every


TABLES: Mapping[type[Block], Callable[..., Table]] = {
    EffectsBlock: effects,
    ErrorsBlock: errors,
    SpeedupsBlock: speedups,
    WhatIfBlock: what_if,
}
"""Kinds of blocks to what makes their tables of a block, the report's spec and the run's values."""
