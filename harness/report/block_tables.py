"""Make the tables that more than one suite's report has."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.claims.model import Claim
from harness.report.comparison import (
    LOOKS,
    SIGNS,
    SIGNS_LEGEND,
    Comparison,
    change,
    compared,
    compile_break_even,
    steps_text,
    why_none,
)
from harness.report.results import ResultIndex, Value
from harness.report.spec import (
    Block,
    Column,
    EffectsBlock,
    ErrorsBlock,
    InputControl,
    Metric,
    Pairing,
    Spec,
    SpeedupsBlock,
    TableBlock,
    WhatIfBlock,
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
    reasoned,
    show,
    word,
)
from harness.report.training import DERIVED, SHOWN_IN, TITLES, TOKENS, title
from harness.sweep.preflight import SLOW_BF16
from harness.units import best_unit, marked, without_unit

BREAK_EVEN = "break_even"
"""Among a block's `extra_metrics`: after how many steps the variant's compile time has been saved."""


def effects(block: EffectsBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return each workload and variant: its conditions, its metric, the change, and what that means."""
    workloads = index.names("workload", block.where)
    extras: dict[str, Metric] = {
        metric: one if isinstance(one, Metric) else Metric(title=one)
        for metric, one in block.extra_metrics.items()
    }
    if block.training:
        extras |= training_columns(index, block)
    stated = {name for record in index.records for name in record.conditions}
    conditions = {name: heading for name, heading in block.conditions.items() if name in stated}
    rows: list[tuple[TableCell, ...]] = []
    unit, intervals = "", False
    for workload in workloads:
        variants = [one for one in index.names("optimization", block.where) if (workload, one) in index.cells]
        named = [index.get(workload, one, block.metric, block.method) for one in variants]
        unit = next((value.unit for value in named if value), unit)
        longest = max((value.median for value in named if value), default=1.0)
        for variant in variants:
            comparison = compared(index, workload, variant, block.pairing)
            intervals = intervals or (comparison is not None and comparison.has_ends)
            rows.append((
                *([word(spec.name("workload", workload))] if len(workloads) > 1 else []),
                word(spec.name("optimization", variant)),
                *(TableCell(index.condition(workload, variant, one)) for one in conditions),
                *_effect(block, spec, index, workload, variant, longest),
                *(_extra(block, spec, index, workload, variant, *one) for one in extras.items()),
            ))  # fmt: skip
    header = (
        *(["Workload"] if len(workloads) > 1 else []),
        "Optimization",
        *conditions.values(),
        spec.name("metric", block.metric) + ("" if block.unit == "auto" else f", {block.unit}"),
        "Change" if unit != "s" else "Speed-up (95 % interval)" if intervals else "Speed-up",
        *([] if block.better == "neither" else ["Effect"]),
        *(one.title for one in extras.values()),
    )
    text = f"{block.text} {own_model(index, workloads)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), optional=len(extras))


def own_model(index: ResultIndex, workloads: Sequence[str]) -> str:
    """Return which model was trained, in a sentence, where a user's config.json is the only workload."""
    ours = (one for one in index.records if one.cell.workload in workloads)
    firsts = [one for one in ours if "model_code" in one.conditions]
    fields = firsts[0].cell.config.get("workload", {}) if firsts else {}
    if len(workloads) != 1 or not fields.get("hf_config"):
        return ""
    return f"The model is that of {fields['source']}, built by {firsts[0].conditions['model_code']}."


def training_columns(index: ResultIndex, block: EffectsBlock) -> dict[str, Metric]:
    """Return the columns of a training step: what is derived from its tokens, and a recorded peak in GiB."""
    derived = {
        metric: Metric(title=title(metric, index, block.where), unit=SHOWN_IN[metric])
        for metric in DERIVED
        if index.select(TOKENS, block.where)
    }
    if block.metric == "peak_memory" or not index.select("peak_memory", block.where):
        return derived
    return {**derived, "peak_memory": Metric(title="Peak per device, GiB", unit="GiB")}


def _effect(
    block: EffectsBlock, spec: Spec, index: ResultIndex, workload: str, variant: str, longest: float
) -> tuple[TableCell, ...]:
    """Return a variant's value, its change against the baseline, and what that means."""
    value = index.get(workload, variant, block.metric, block.method)
    if value is None:
        place = {"workload": workload, "optimization": variant}
        place |= {"metric": block.metric, "method": block.method}
        absent = missing(index, place, spec.name("metric", block.metric))
        cells = absent, TableCell(""), TableCell("unavailable", look="muted")
    else:
        shown = TableCell(show(value, block.unit), value.cell, bar=value.median / (longest or 1.0))
        cells = shown, *_change(block, index, workload, variant)
    return cells[:2] if block.better == "neither" else cells


def _change(
    block: EffectsBlock, index: ResultIndex, workload: str, variant: str
) -> tuple[TableCell, TableCell]:
    """Return the change against the baseline, and what it means."""
    if variant == block.baseline:
        return TableCell(""), TableCell("baseline", look="muted")
    comparison = compared(index, workload, variant, block.pairing)
    if comparison is None:
        lacking = reasoned(why_none(index, workload, variant, block.pairing))
        return lacking, TableCell("unavailable", look="muted")
    notes = _notes(index, workload, variant, comparison, block.noise)
    shown = TableCell(comparison.text, comparison.cell, notes=notes)
    if variant == block.noise:
        return shown, TableCell("noise", look="muted")
    turned = {"pays": "costs", "costs": "pays"} if block.better == "higher" else {}
    effect = turned.get(comparison.effect, comparison.effect)
    return shown, TableCell(effect, look=LOOKS[effect])


def _extra(
    block: EffectsBlock, spec: Spec, index: ResultIndex, workload: str, variant: str, metric: str, one: Metric
) -> TableCell:
    """Return another metric of the cell, with its method where it has one of its own."""
    if not index.get(workload, variant, block.metric, block.method):
        return DASH
    if metric == BREAK_EVEN:
        paid = compile_break_even(index, workload, variant, block.pairing)
        return TableCell(steps_text(paid)) if paid else DASH
    method = block.method if one.method is None else one.method
    value = index.get(workload, variant, metric, method)
    if value is None and one.method is None:
        value = index.first(workload, variant, metric)
    if value is None and metric not in DERIVED:
        return DASH
    if value is None:
        place = {"workload": workload, "optimization": variant, "metric": metric, "method": method}
        return missing(index, place, TITLES[metric])
    unit = one.unit or ("1" if value.unit == "1" else "auto")
    own = value.method and value.method not in (block.method, one.method)
    by = f", {spec.name('method', value.method)}" if own else ""
    return TableCell(show(value, unit) + by, value.cell)


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


def _notes(
    index: ResultIndex, workload: str, variant: str, comparison: Comparison, noise: str
) -> tuple[str, ...]:
    """Return what a reader must know of a ratio: its samples, what decides it, slow bf16."""
    undecided = comparison.undecided if variant != noise else ""
    texts = (comparison.footnote, undecided, index.note(workload, variant, SLOW_BF16))
    return tuple(filter(None, texts))


def speed_up_cell(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> TableCell:
    """Return a speed-up with the sign of what it means."""
    comparison = compared(index, workload, variant, pairing)
    if comparison is None:
        return reasoned(why_none(index, workload, variant, pairing))
    notes = _notes(index, workload, variant, comparison, pairing.noise)
    if variant == pairing.noise:
        return TableCell(comparison.text, comparison.cell, notes=notes)
    text, look = f"{SIGNS[comparison.effect]} {comparison.text}", LOOKS[comparison.effect]
    return TableCell(text, comparison.cell, look, notes=notes)


KEYS = ("workload", "optimization", "method")


class ColumnPlace(NamedTuple):
    """A column at one row: what it shows, of which cell."""

    column: Column
    workload: str
    optimization: str
    method: str

    def at(self, key: str, name: str) -> ColumnPlace:
        """Return the same at another workload, variant or method."""
        return self._replace(**{key: name})  # type: ignore[arg-type]

    @property
    def value(self) -> dict[str, str]:
        """Return where its value is in the index."""
        return {**{key: getattr(self, key) for key in KEYS}, "metric": self.column.metric}


def columns_table(block: TableBlock, spec: Spec, index: ResultIndex, claims: Sequence[Claim]) -> Table:
    """Return rows by one key, in which each column shows a value of its own."""
    key, heading = next(iter(block.rows.items()))
    only = block.where.get("workload", "")
    only = only if isinstance(only, str) else ""
    columns = [
        (title, place.at("workload", only if block.workload else place.workload or only))
        for one in block.columns
        for title, place in _spread(one, key, spec, index, block.where)
    ]
    rows = []
    for name in index.names(key, block.where):
        cells = [_entry(place.at(key, name), title, index, claims) for title, place in columns]
        if any(cell.cell or cell.look in ("bad", "warn") for cell in cells):
            rows.append((word(spec.name(key, name)), *cells))
    header = (heading, *(title for title, _ in columns))
    return Table(block.id, block.title, block.text, header, tuple(rows))


def _spread(
    column: Column, key: str, spec: Spec, index: ResultIndex, where: Mapping[str, object]
) -> Iterator[tuple[str, ColumnPlace]]:
    """Yield a column's heading and its place; with `by` one for each value of that key with its metric."""
    variant = column.optimization or ("baseline" if key != "optimization" else "")
    place = ColumnPlace(column, column.workload, variant, column.method)
    if not column.by:
        yield column.title, place
        return
    wanted = {**where, **({"method": column.method} if column.method else {})}
    for name in index.names(column.by, wanted, column.metric):
        yield (column.title or "{}").format(spec.name(column.by, name)), place.at(column.by, name)


def _entry(place: ColumnPlace, heading: str, index: ResultIndex, claims: Sequence[Claim]) -> TableCell:
    column = place.column
    if column.condition:
        return _stated(place, index)
    first = _quoted(place, claims) if column.claim else _shown(place, heading, index)
    if first is None:
        return TableCell("")
    if not column.also or first.look:
        return first
    at = place._replace(column=column.also)
    for key in KEYS:
        at = at.at(key, getattr(column.also, key) or getattr(place, key))
    second = _entry(at, heading, index, claims)
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    mark = first.text[-2:]
    if mark[0] == " " and second.text.endswith(mark):  # one origin, one mark
        return first._replace(text=f"{first.text[:-2]} ({second.text[:-2]}){mark}", notes=notes)
    return first._replace(text=f"{first.text} ({second.text})", notes=notes)


def _stated(place: ColumnPlace, index: ResultIndex) -> TableCell:
    """Return a condition of a cell's record as text; nothing where there is no record."""
    records = index.cells.get((place.workload, place.optimization))
    if not records:
        return TableCell("")
    stated = index.condition(place.workload, place.optimization, place.column.condition)
    return TableCell(stated, records[0].cell.id, "word")


def _quoted(place: ColumnPlace, claims: Sequence[Claim]) -> TableCell | None:
    wanted = place.column.claim.format(workload=place.workload, optimization=place.optimization)
    claim = next((claim for claim in claims if claim.id == wanted), None)
    return None if claim is None else TableCell(without_unit(claim.value, claim.unit, place.column.unit))


def _shown(place: ColumnPlace, heading: str, index: ResultIndex) -> TableCell:
    column = place.column
    value = index.get(**place.value)
    if value is None:
        return missing(index, place.value, heading)
    if column.relative_to:
        return change(index, value, column.relative_to, column.draws, column.speed_up)
    low, high = value.of_repeats.get(column.statistic, (0.0, 0.0))
    value = value._replace(median=getattr(value, column.statistic))
    if column.per:
        share = divided(value, index, column.per)
        if share is None:
            return missing(index, {**place.value, "metric": column.per, "method": ""}, heading)
        value = share
    note = index.note(value.workload, value.optimization, value.method) if column.notes else ""
    text = show(value, column.unit, column.signed)
    if column.range and not column.per:
        shown = best_unit(value.median, value.unit) if column.unit == "auto" else column.unit
        ends = [without_unit(end, value.unit, shown) for end in (low, high)]
        if ends[0] != ends[1]:
            number, space, origin = text.rpartition(" ")
            text = f"{number} ({' … '.join(ends)}){space}{origin}"
    return TableCell(text, value.cell, notes=(note,) if note else ())


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


def error_rows(block: ErrorsBlock, index: ResultIndex) -> list[Errors]:
    """Return one row per method, the most accurate first."""
    groups: dict[str, list[Value]] = {}
    for value in index.select(block.metric, block.where):
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


def errors(block: ErrorsBlock, spec: Spec, index: ResultIndex) -> Table:
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
                word(spec.name("method", row.method)),
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


def what_if(block: WhatIfBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return the start's values, then those of each combination that changes one input of it."""
    values = _values(block, index)
    choices = {key: _choices(key, values) for key in block.controls}
    start = {key: control.start for key, control in block.controls.items()}
    header = ("Changed", *(metric.title for metric in block.metrics.values()))
    empty = Table(block.id, block.title, block.text, header, ())
    if not values or _method(start) not in values:
        return empty
    places = [("nothing", start)]
    places += [
        (f"{control.title}: {control.names.get(value, value)}", {**start, key: value})
        for key, control in block.controls.items()
        for value in choices[key]
        if value != start[key]
    ]
    entries = {method: _texts(block, of) for method, of in values.items()}
    rows = []
    for name, place in places:
        of = values.get(_method(place), {})
        cells = [of[metric].cell if metric in of else "" for metric in block.metrics]
        rows.append((word(name), *map(TableCell, _texts(block, of), cells)))
    picker = Picker(
        tuple(_control(key, control, choices[key]) for key, control in block.controls.items()),
        header[1:],
        entries,
        _method(start),
        next(iter(values[_method(start)].values())).cell,
    )
    return empty._replace(rows=tuple(rows), picker=picker)


def _texts(block: WhatIfBlock, of: Mapping[str, Value]) -> tuple[str, ...]:
    """Return each metric's value as text."""
    shown = ((of.get(metric), one.unit or "auto") for metric, one in block.metrics.items())
    return tuple(show(value, unit) if value else "–" for value, unit in shown)


def _control(key: str, control: InputControl, choices: Sequence[str]) -> PageControl:
    named = tuple((f"{key}={value}", control.names.get(value, value)) for value in choices)
    return PageControl(control.title, named, f"{key}={control.start}")


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
