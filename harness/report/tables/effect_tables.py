"""Show what each variant does: its metric with the change and the effect, or its speed-up per workload.

Show each time next to the bound that this host sets: bytes over bandwidth, FLOPs over its matmul rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.data.speedup import (
    LOOKS,
    SIGNS,
    SIGNS_LEGEND,
    Comparison,
    compared,
    compile_break_even,
    steps_text,
    why_none,
)
from harness.report.data.training_metrics import DERIVED, SHOWN_IN, TITLES, TOKENS, title
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Footnotes, Table, TableCell, missing, percent, reasoned, show
from harness.sweep.preflight import SLOW_BF16
from harness.units import human, marked

BREAK_EVEN = "break_even"
"""Among a block's `extra_metrics`: after how many steps the variant's compile time has been saved."""


def effects(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return each workload and variant: its conditions, its metric, the change, and what that means."""
    fields, notes = block.fields, Footnotes()
    workloads = index.names("workload", fields["where"])
    extras = {**fields["extra_metrics"], **(training_columns(index, fields) if fields["training"] else {})}
    fields = {**fields, "extra_metrics": extras, "conditions": stated_conditions(index, fields)}
    rows: list[tuple[TableCell, ...]] = []
    unit, intervals = "", False
    for workload in workloads:
        variants = [
            one for one in index.names("optimization", fields["where"]) if (workload, one) in index.cells
        ]
        named = [index.get(workload, one, fields["metric"], fields["method"]) for one in variants]
        unit = next((value.unit for value in named if value), unit)
        longest = max((value.median for value in named if value), default=1.0)
        for variant in variants:
            head = [TableCell(spec.name("workload", workload), look="word")] if len(workloads) > 1 else []
            head.append(TableCell(spec.name("optimization", variant), look="word"))
            rows.append((*head, *_effect_row(spec, index, notes, workload, variant, fields, longest)))
            comparison = compared(index, workload, variant, fields)
            intervals = intervals or (comparison is not None and comparison.has_ends)
    header = (
        *(["Workload"] if len(workloads) > 1 else []),
        "Optimization",
        *fields["conditions"].values(),
        spec.name("metric", fields["metric"]) + ("" if fields["unit"] == "auto" else f", {fields['unit']}"),
        "Change" if unit != "s" else "Speed-up (95 % interval)" if intervals else "Speed-up",
        *([] if fields["better"] == "neither" else ["Effect"]),
        *(str(one["title"] if isinstance(one, Mapping) else one) for one in extras.values()),
    )
    text = f"{block.text} {own_model(index, workloads)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts), optional=len(extras))


def own_model(index: ResultIndex, workloads: Sequence[str]) -> str:
    """Return which model was trained, in a sentence, where a user's config.json is the only workload."""
    ours = (one for one in index.records if one.cell.workload in workloads)
    firsts = [one for one in ours if "model_code" in one.conditions]
    fields = firsts[0].cell.config.get("workload", {}) if firsts else {}
    if len(workloads) != 1 or not fields.get("hf_config"):
        return ""
    return f"The model is that of {fields['source']}, built by {firsts[0].conditions['model_code']}."


def stated_conditions(index: ResultIndex, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the conditions that a record states: those of earlier versions lack some."""
    stated = {name for record in index.records for name in record.conditions}
    return {name: title for name, title in fields["conditions"].items() if name in stated}


def training_columns(index: ResultIndex, fields: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the columns of a training step: what is derived from its tokens, and a recorded peak in GiB."""
    where = fields["where"]
    derived = {
        metric: {"title": title(metric, index, where), "unit": SHOWN_IN[metric]}
        for metric in DERIVED
        if index.select(TOKENS, where)
    }
    if fields["metric"] == "peak_memory" or not index.select("peak_memory", where):
        return derived
    return {**derived, "peak_memory": {"title": "Peak per device, GiB", "unit": "GiB"}}


def _effect_row(
    spec: Spec, index: ResultIndex, notes: Footnotes, workload: str, variant: str, fields: Mapping[str, Any],
    longest: float,
) -> list[TableCell]:  # fmt: skip
    conditions = [TableCell(index.condition(workload, variant, one)) for one in fields["conditions"]]
    place = {"workload": workload, "optimization": variant}
    place |= {"metric": fields["metric"], "method": fields["method"]}
    value = index.get(**place)
    extras = [
        _extra(spec, index, notes, workload, variant, metric, extra, fields)
        if value
        else TableCell("–", look="muted")
        for metric, extra in fields["extra_metrics"].items()
    ]
    if value is None:
        absent = missing(index, notes, place, spec.name("metric", fields["metric"]))
        cells = [absent, TableCell(""), TableCell("unavailable", look="muted")]
    else:
        shown = TableCell(show(value, fields["unit"]), value.cell, bar=value.median / (longest or 1.0))
        cells = [shown, *_change(index, notes, workload, variant, fields)]
    return [*conditions, *(cells[:2] if fields["better"] == "neither" else cells), *extras]


def _change(
    index: ResultIndex, notes: Footnotes, workload: str, variant: str, fields: Mapping[str, Any]
) -> tuple[TableCell, TableCell]:
    """Return the change against the baseline, and what it means."""
    if variant == fields["baseline"]:
        return TableCell(""), TableCell("baseline", look="muted")
    comparison = compared(index, workload, variant, fields)
    if comparison is None:
        lacking = reasoned(notes, why_none(index, workload, variant, fields))
        return lacking, TableCell("unavailable", look="muted")
    note = footnotes(index, notes, workload, variant, comparison, fields["noise"])
    shown = TableCell(comparison.text, comparison.cell, note=note)
    if variant == fields["noise"]:
        return shown, TableCell("noise", look="muted")
    effect = _turned(comparison.effect) if fields["better"] == "higher" else comparison.effect
    return shown, TableCell(effect, look=LOOKS[effect])


def _turned(effect: str) -> str:
    """Return what a variant does to a quantity of which more is better."""
    return {"pays": "costs", "costs": "pays"}.get(effect, effect)


def _extra(
    spec: Spec, index: ResultIndex, notes: Footnotes, workload: str, variant: str, metric: str, extra: Any,
    fields: Mapping[str, Any],
) -> TableCell:  # fmt: skip
    """Return another metric of the cell, with its method where it has one of its own."""
    method = fields["method"]
    if metric == BREAK_EVEN:
        paid = compile_break_even(index, workload, variant, fields)
        return TableCell(steps_text(paid) if paid else "–", look="" if paid else "muted")
    chosen = extra if isinstance(extra, Mapping) else {}
    value = index.get(workload, variant, metric, chosen.get("method", method))
    value = value or (None if "method" in chosen else index.first(workload, variant, metric))
    if value is None and metric not in DERIVED:
        return TableCell("–", look="muted")
    if value is None:
        place = {"workload": workload, "optimization": variant, "metric": metric}
        return missing(index, notes, {**place, "method": chosen.get("method", method)}, TITLES[metric])
    unit = chosen.get("unit", "1" if value.unit == "1" else "auto")
    own = value.method and value.method not in (method, chosen.get("method"))
    by = f", {spec.name('method', value.method)}" if own else ""
    return TableCell(show(value, unit) + by, value.cell)


def speedups(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per workload and a column per variant, each its speed-up."""
    fields, notes = block.fields, Footnotes()
    workloads = index.names("workload", fields["where"])
    variants, absent = timed_variants(index, workloads, index.names("optimization", fields["where"]), fields)
    rows = []
    for workload in workloads:
        cells = [speed_up_cell(index, notes, workload, variant, fields) for variant in variants]
        base = index.get(workload, fields["baseline"], fields["metric"], fields["method"])
        time = TableCell(show(base, "auto"), base.cell) if base else TableCell("–", look="muted")
        rows.append((TableCell(spec.name("workload", workload), look="word"), time, *cells))
    header = (
        fields["heading"] or "Workload",
        spec.name("optimization", fields["baseline"]),
        *(spec.name("optimization", variant) for variant in variants),
    )
    names = ", ".join(spec.name("optimization", variant) for variant in absent)
    not_timed = f"Not timed on any of these: {names}." if names else ""
    text = f"{block.text} {SIGNS_LEGEND} {not_timed}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def timed_variants(
    index: ResultIndex, workloads: Sequence[str], variants: Sequence[str], fields: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the variants with a time on any of the workloads, and those without; never the baseline."""
    others = [one for one in variants if one != fields["baseline"]]
    place = fields["metric"], fields["method"]
    timed = [one for one in others if any(index.get(workload, one, *place) for workload in workloads)]
    return timed, [one for one in others if one not in timed]


def footnotes(
    index: ResultIndex, notes: Footnotes, workload: str, variant: str, comparison: Comparison, noise: str
) -> str:
    """Return the marks of what a reader must know of a ratio: its samples, what decides it, slow bf16."""
    undecided = comparison.undecided if variant != noise else ""
    texts = (comparison.footnote, undecided, index.note(workload, variant, SLOW_BF16))
    return "".join(f" {notes.mark(text)}" for text in texts if text)


def speed_up_cell(
    index: ResultIndex, notes: Footnotes, workload: str, variant: str, fields: Mapping[str, Any]
) -> TableCell:
    """Return a speed-up with the sign of what it means."""
    comparison = compared(index, workload, variant, fields)
    if comparison is None:
        return reasoned(notes, why_none(index, workload, variant, fields))
    note = footnotes(index, notes, workload, variant, comparison, fields["noise"])
    if variant == fields["noise"]:
        return TableCell(comparison.text, comparison.cell, note=note)
    return TableCell(
        f"{SIGNS[comparison.effect]} {comparison.text}", comparison.cell, LOOKS[comparison.effect], note=note
    )


class RooflineBound(NamedTuple):
    """The shortest time in which the work can be done here, in seconds, and what limits it."""

    time_s: float
    by: str  # memory | compute


class Rates(NamedTuple):
    """What the host reached in the same run: B/s, and FLOP/s by precision; None where not measured."""

    bandwidth: float | None
    compute: Mapping[str, float | None]

    def bound(self, moved_B: float, flops: float, precision: str) -> RooflineBound | str:
        """Return the bound of such work, or why it is unknown."""
        rate = self.compute.get(precision)
        if self.bandwidth is None or rate is None:
            absent = (
                "copy bandwidth"
                if self.bandwidth is None
                else f"matmul rate in {precision or 'its precision'}"
            )
            return f"the {absent} was not measured in this run"
        memory_s, compute_s = moved_B / self.bandwidth, flops / rate
        return (
            RooflineBound(memory_s, "memory")
            if memory_s >= compute_s
            else RooflineBound(compute_s, "compute")
        )


def rates(fields: Mapping[str, Any], index: ResultIndex) -> Rates:
    """Return the median rates of the baseline on the workloads that `fields` name."""
    compute = {
        name: _rate(index, workload, fields["flops"], fields) for name, workload in fields["rates"].items()
    }
    return Rates(_rate(index, fields["bandwidth"], fields["bytes"], fields), compute)


def roofline(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return one row per workload and variant that was timed."""
    fields, notes = block.fields, Footnotes()
    measured = rates(fields, index)
    rows = []
    variants = index.names("optimization", fields["where"], fields["metric"])
    for workload in index.names("workload", fields["where"], fields["metric"]):
        for variant in variants:
            value = index.get(workload, variant, fields["metric"], fields["method"])
            if value is not None:
                name = TableCell(spec.name("workload", workload), look="word")
                cells = _row(index, notes, value, fields, measured)
                rows.append((name, TableCell(spec.name("optimization", variant), look="word"), *cells))
    header = (
        "Workload",
        "Optimization",
        "Min. bytes",
        "GFLOP",
        "Time",
        "Bound",
        "Limited by",
        "% of roofline",
    )
    text = f"{block.text} {_rates_text(measured)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def _row(
    index: ResultIndex, notes: Footnotes, value: Value, fields: Mapping[str, Any], measured: Rates
) -> tuple[TableCell, ...]:
    workload, variant = value.workload, value.optimization
    moved, flops = (index.first(workload, variant, fields[name]) for name in ("bytes", "flops"))
    slow = index.note(workload, variant, SLOW_BF16)
    time = TableCell(show(value, "auto"), value.cell, note=f" {notes.mark(slow)}" if slow else "")
    if moved is None or flops is None:
        name, heading = ("bytes", "Min. bytes") if moved is None else ("flops", "GFLOP")
        place = {"workload": workload, "optimization": variant, "metric": fields[name], "method": ""}
        absent = missing(index, notes, place, heading)
        return (
            absent,
            absent,
            time,
            TableCell("unknown", look="muted"),
            TableCell("–", look="muted"),
            TableCell("–", look="muted"),
        )
    work = TableCell(show(moved, "auto"), moved.cell), TableCell(show(flops, "GFLOP"), flops.cell)
    bound = measured.bound(
        moved.median, flops.median, index.condition(workload, variant, fields["precision"])
    )
    if isinstance(bound, str):
        unknown = reasoned(notes, ("unknown", bound))
        return *work, time, unknown, TableCell("–", look="muted"), TableCell("–", look="muted")
    shown = marked(human(bound.time_s, "s"), "calculated")
    share = marked(percent(bound.time_s / value.median), value.origin)
    return *work, time, TableCell(shown, value.cell), TableCell(bound.by), TableCell(share, value.cell)


def _rate(index: ResultIndex, workloads: Sequence[str], work: str, fields: Mapping[str, Any]) -> float | None:
    for workload in workloads:
        done = index.first(workload, fields["baseline"], work)
        time = index.get(workload, fields["baseline"], fields["metric"], fields["method"])
        if done and time and time.median > 0:
            return done.median / time.median
    return None


def _rates_text(measured: Rates) -> str:
    """Return the measured rates in a sentence."""
    known = [f"{human(measured.bandwidth, 'B/s')} copied"] if measured.bandwidth else []
    known += [f"{human(rate, 'FLOP/s')} in {name}" for name, rate in measured.compute.items() if rate]
    return f"Reached by this host: {', '.join(known)}." if known else "No rate of this host was measured."
