"""Compare each variant with the baseline of its run: every ratio of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.paired_ratio import NoPairsError, compare, inverse
from harness.report.result_index import ResultIndex, Value
from harness.report.spec import Block, Spec
from harness.report.tables import Notes, Table, TableCell, missing, percent, reasoned, show
from harness.report.training_metrics import DERIVED, SHOWN_IN, TOKENS, title
from harness.units import marked, times

if TYPE_CHECKING:
    from harness.statistics import Ratio

LOOKS = {"pays": "good", "costs": "bad", "no difference": "muted", "undecided": "warn"}
SIGNS = {"pays": "▲", "costs": "▼", "no difference": "=", "undecided": "?"}
SIGNS_LEGEND = "▲ pays, ▼ costs, = no difference, ? undecided; in brackets the 95 % interval."

THROTTLED = "throttled"
"""The metric that is above 0 for a window in which the clock was lowered; such a speed-up is marked."""

NO_INTERVAL = {
    "single": "one sample on each side, so there is no interval",
    "exact": "every sample of each side is the same, so there is no interval",
    "ranges": "samples do not pair; in brackets the ends of all samples, not an interval",
}


class Comparison(NamedTuple):
    """A variant compared with the baseline on one workload: the ratio, and what the variant does."""

    ratio: Ratio  # ours over the baseline's
    effect: str  # pays | costs | no difference | undecided
    unit: str
    origin: str
    cell: str
    throttled: bool = False

    @property
    def speed_up(self) -> Ratio:
        """The baseline's over ours: above 1 where less is better and ours is less."""
        return inverse(self.ratio)

    @property
    def text(self) -> str:
        """`1.41× (1.38 … 1.44) ᵐ` of times, `−43.1 % ᵐ` of anything else."""
        note = ["throttled"] if self.throttled else []
        if self.unit == "s":
            low, high = (times(end).removesuffix("×") for end in (self.speed_up.low, self.speed_up.high))
            ends = [f"{low} … {high}"] if self.has_ends else []
            shown = times(self.speed_up.value)
        else:
            low, high = (percent(end - 1, True) for end in (self.ratio.low, self.ratio.high))
            ends = [f"{low} … {high}"] if self.has_ends else []
            shown = percent(self.ratio.value - 1, True)
        brackets = ", ".join([*ends, *note])
        return marked(f"{shown} ({brackets})" if brackets else shown, self.origin)

    @property
    def has_ends(self) -> bool:
        """Whether low and high say more than the ratio."""
        return self.ratio.basis in ("pairs", "ranges")


def compared(index: ResultIndex, workload: str, variant: str, fields: Mapping[str, Any]) -> Comparison | None:
    """Return the comparison, None without one; `fields`: metric, method, baseline … of a block."""
    value = index.get(workload, variant, fields["metric"], fields["method"])
    if value is None:
        return None
    try:
        ratio = ratio_of(index, workload, variant, fields)
    except NoPairsError:
        return None
    throttled = any(was_throttled(index, workload, name) for name in (variant, fields["baseline"]))
    effect = _effect(ratio, noise_of(index, workload, fields), fields)
    return Comparison(ratio, effect, value.unit, value.origin, value.cell, throttled)


def _effect(ratio: Ratio, noise: Ratio | None, fields: Mapping[str, Any]) -> str:
    """Return what a variant does: held to the noise where that was measured, else to `equal_within`."""
    from harness.statistics import effect

    if fields.get("noise"):
        return effect(ratio, noise) if ratio.basis in ("pairs", "exact") else "undecided"
    band = math.log1p(fields.get("equal_within", 0.0))
    low, value, high = (math.log(end) for end in (ratio.low, ratio.value, ratio.high))
    if -band <= low and high <= band:
        return "no difference"
    if abs(value) <= band or low < 0 < high:
        return "undecided"
    return "pays" if value < 0 else "costs"


def was_throttled(index: ResultIndex, workload: str, variant: str) -> bool:
    """Return whether the clock was lowered, for heat or power, in any window of the variant."""
    records = index.cells.get((workload, variant), [])
    samples = [one.samples for record in records for one in record.measurements if one.metric == THROTTLED]
    return any(value > 0 for some in samples for value in some)


def noise_of(index: ResultIndex, workload: str, fields: Mapping[str, Any]) -> Ratio | None:
    """Return the baseline over itself; None where it was not timed twice."""
    try:
        return ratio_of(index, workload, fields["noise"], fields) if fields.get("noise") else None
    except NoPairsError:
        return None


def ratio_of(index: ResultIndex, workload: str, variant: str, fields: Mapping[str, Any]) -> Ratio:
    """Return the variant's metric over the baseline's; raises `NoPairsError`."""
    own, base = (index.cells.get((workload, name), []) for name in (variant, fields["baseline"]))
    return compare(own, base, fields["metric"], fields["method"], bool(fields.get("draws")))


def why_none(index: ResultIndex, workload: str, variant: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return in a word and in a sentence why there is no comparison."""
    for name in (variant, fields["baseline"]):
        if index.get(workload, name, fields["metric"], fields["method"]) is None:
            word, sentence = index.reason(workload, name, fields["metric"], fields["method"])
            if word == "unavailable":  # on every workload for the same reason: one footnote
                sentence = sentence.replace(f"{name} on {workload}: unavailable: ", f"{name}: ", 1)
            return word, sentence
    try:
        ratio_of(index, workload, variant, fields)
    except NoPairsError as reason:
        return "–", f"{variant} on {workload}: {reason}"
    return "–", f"{variant} on {workload}: nothing to compare"


def change(index: ResultIndex, notes: Notes, value: Value, baseline: str) -> TableCell:
    """Return a table cell with the change of a value against another variant, by the same comparison."""
    fields = {"metric": value.metric, "method": value.method, "baseline": baseline}
    found = compared(index, value.workload, value.optimization, fields)
    if found is None:
        return reasoned(notes, why_none(index, value.workload, value.optimization, fields))
    shown = percent(found.ratio.value - 1, True)
    ends = [percent(end - 1, True).removesuffix(" %") for end in (found.ratio.low, found.ratio.high)]
    text = f"{shown} ({ends[0]} … {ends[1]})" if found.has_ends and ends[0] != ends[1] else shown
    return TableCell(marked(text, value.origin), value.cell)


def effects(block: Block, spec: Spec, index: ResultIndex) -> Table:
    """Return each workload and variant: its conditions, its metric, the change, and what that means."""
    fields, notes = block.fields, Notes()
    workloads = index.names("workload", fields["where"])
    extras = {**fields["extra_metrics"], **(training_columns(index, fields) if fields["training"] else {})}
    fields = {**fields, "extra_metrics": extras}
    rows: list[tuple[TableCell, ...]] = []
    unit = ""
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
    header = (
        *(["Workload"] if len(workloads) > 1 else []),
        "Optimization",
        *fields["conditions"].values(),
        spec.name("metric", fields["metric"]) + ("" if fields["unit"] == "auto" else f", {fields['unit']}"),
        "Speed-up (95 % interval)" if unit == "s" else "Change",
        *([] if fields["better"] == "neither" else ["Effect"]),
        *(str(one["title"] if isinstance(one, Mapping) else one) for one in extras.values()),
    )
    return Table(
        block.id, block.title, block.text, header, tuple(rows), tuple(notes.texts), optional=len(extras)
    )


def training_columns(index: ResultIndex, fields: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the columns of a training step: those with a value in any row, and the peak in GiB."""
    where = fields["where"]
    derived = {
        metric: {"title": title(metric, index, where), "unit": SHOWN_IN[metric]}
        for metric in DERIVED
        if index.select(TOKENS, where)
    }
    if fields["metric"] == "peak_memory":
        return derived
    return {**derived, "peak_memory": {"title": "Peak per device, GiB", "unit": "GiB"}}


def _effect_row(
    spec: Spec, index: ResultIndex, notes: Notes, workload: str, variant: str, fields: Mapping[str, Any],
    longest: float,
) -> list[TableCell]:  # fmt: skip
    conditions = [TableCell(index.condition(workload, variant, one)) for one in fields["conditions"]]
    place = {"workload": workload, "optimization": variant}
    place |= {"metric": fields["metric"], "method": fields["method"]}
    value = index.get(**place)
    extras = [
        _extra(spec, index, notes, workload, variant, metric, extra, fields["method"])
        if value
        else TableCell("–", look="muted")
        for metric, extra in fields["extra_metrics"].items()
    ]
    if value is None:
        cells = [missing(index, notes, place), TableCell(""), TableCell("unavailable", look="muted")]
    else:
        shown = TableCell(show(value, fields["unit"]), value.cell, bar=value.median / (longest or 1.0))
        cells = [shown, *_change(index, notes, workload, variant, fields)]
    return [*conditions, *(cells[:2] if fields["better"] == "neither" else cells), *extras]


def _change(
    index: ResultIndex, notes: Notes, workload: str, variant: str, fields: Mapping[str, Any]
) -> tuple[TableCell, TableCell]:
    """Return the change against the baseline, and what it means."""
    if variant == fields["baseline"]:
        return TableCell(""), TableCell("baseline", look="muted")
    found = compared(index, workload, variant, fields)
    if found is None:
        lacking = reasoned(notes, why_none(index, workload, variant, fields))
        return lacking, TableCell("unavailable", look="muted")
    why = NO_INTERVAL.get(found.ratio.basis)
    shown = TableCell(found.text, found.cell, note=f" {notes.mark(why)}" if why else "")
    if variant == fields["noise"]:
        return shown, TableCell("noise", look="muted")
    effect = _turned(found.effect) if fields["better"] == "higher" else found.effect
    return shown, TableCell(effect, look=LOOKS[effect])


def _turned(effect: str) -> str:
    """Return what a variant does to a quantity of which more is better."""
    return {"pays": "costs", "costs": "pays"}.get(effect, effect)


def _extra(
    spec: Spec, index: ResultIndex, notes: Notes, workload: str, variant: str, metric: str, extra: Any,
    method: str,
) -> TableCell:  # fmt: skip
    """Return another metric of the cell, with its method where it has one of its own."""
    chosen = extra if isinstance(extra, Mapping) else {}
    value = index.get(workload, variant, metric, chosen.get("method", method))
    value = value or (None if "method" in chosen else index.first(workload, variant, metric))
    if value is None and metric not in DERIVED:
        return TableCell("–", look="muted")
    if value is None:
        place = {"workload": workload, "optimization": variant, "metric": metric}
        return missing(index, notes, {**place, "method": chosen.get("method", method)})
    unit = chosen.get("unit", "1" if value.unit == "1" else "auto")
    own = value.method and value.method not in (method, chosen.get("method"))
    by = f", {spec.name('method', value.method)}" if own else ""
    return TableCell(show(value, unit) + by, value.cell)


def speedups(block: Block, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per workload and a column per variant, each its speed-up."""
    fields, notes = block.fields, Notes()
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


def speed_up_cell(
    index: ResultIndex, notes: Notes, workload: str, variant: str, fields: Mapping[str, Any]
) -> TableCell:
    """Return a speed-up with the sign of what it means."""
    found = compared(index, workload, variant, fields)
    if found is None:
        return reasoned(notes, why_none(index, workload, variant, fields))
    why = NO_INTERVAL.get(found.ratio.basis)
    note = f" {notes.mark(why)}" if why else ""
    if variant == fields["noise"]:
        return TableCell(found.text, found.cell, note=note)
    return TableCell(f"{SIGNS[found.effect]} {found.text}", found.cell, LOOKS[found.effect], note=note)
