"""Variants that were timed together -> tables: time and effect, speed-ups, a part alone beside the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.compared import LOOKS, SIGNS, SIGNS_LEGEND, compared, why_none
from harness.report.frame import Frame
from harness.report.spec import Block, Spec
from harness.report.tables import Notes, Table, Text, missing, reasoned, show


def timed_effects(block: Block, spec: Spec, frame: Frame) -> Table:
    """Each workload and variant: its conditions, its time, its speed-up, and what that means."""
    fields, notes = block.fields, Notes()
    workloads = frame.values("workload", fields["where"])
    rows: list[tuple[Text, ...]] = []
    for workload in workloads:
        variants = [
            variant
            for variant in frame.values("optimization", fields["where"])
            if (workload, variant) in frame.cells
        ]
        named = [frame.get(workload, variant, fields["metric"], fields["method"]) for variant in variants]
        longest = max((figure.value for figure in named if figure), default=1.0)
        for variant in variants:
            head = [Text(spec.name("workload", workload), look="word")] if len(workloads) > 1 else []
            head.append(Text(spec.name("optimization", variant), look="word"))
            rows.append((*head, *_effect(spec, frame, notes, workload, variant, fields, longest)))
    header = (
        *(["Workload"] if len(workloads) > 1 else []),
        "Optimization",
        *fields["conditions"].values(),
        *fields["beside"].values(),
        spec.name("metric", fields["metric"]) + ("" if fields["unit"] == "auto" else f", {fields['unit']}"),
        "Speed-up (95 % interval)",
        "Here it",
    )
    return Table(block.id, block.title, block.text, header, tuple(rows), tuple(notes.texts))


def _effect(
    spec: Spec,
    frame: Frame,
    notes: Notes,
    workload: str,
    variant: str,
    fields: Mapping[str, Any],
    longest: float,
) -> list[Text]:
    cells = [Text(frame.condition(workload, variant, one)) for one in fields["conditions"]]
    for metric in fields["beside"]:
        other = frame.first(workload, variant, metric)
        unit = "1" if other and other.unit == "1" else "auto"
        by = f", {spec.name('method', other.method)}" if other and other.method else ""
        cells.append(Text(show(other, unit) + by, other.cell) if other else Text("–", look="muted"))
    place = {
        "workload": workload,
        "optimization": variant,
        "metric": fields["metric"],
        "method": fields["method"],
    }
    figure = frame.get(**place)
    if figure is None:
        return [*cells, missing(frame, notes, place), Text(""), Text("unavailable", look="muted")]
    cells.append(Text(show(figure, fields["unit"]), figure.cell, bar=figure.value / longest))
    if variant == fields["baseline"]:
        return [*cells, Text(""), Text("is the baseline", look="muted")]
    found = compared(frame, workload, variant, fields)
    if found is None:
        return [
            *cells,
            reasoned(notes, why_none(frame, workload, variant, fields)),
            Text("unavailable", look="muted"),
        ]
    if variant == fields["noise"]:
        return [*cells, Text(found.text, found.cell), Text("is the noise", look="muted")]
    return [*cells, Text(found.text, found.cell), Text(found.word, look=LOOKS[found.word])]


def speedups(block: Block, spec: Spec, frame: Frame) -> Table:
    """A row a workload, a column a variant."""
    fields, notes = block.fields, Notes()
    workloads = frame.values("workload", fields["where"])
    variants, absent = _timed_arms(frame, workloads, frame.values("optimization", fields["where"]), fields)
    rows = []
    for workload in workloads:
        cells = [_speed_up(frame, notes, workload, variant, fields) for variant in variants]
        base = frame.get(workload, fields["baseline"], fields["metric"], fields["method"])
        time = Text(show(base, "auto"), base.cell) if base else Text("–", look="muted")
        rows.append((Text(spec.name("workload", workload), look="word"), time, *cells))
    header = (
        fields["heading"] or "Workload",
        spec.name("optimization", fields["baseline"]),
        *(spec.name("optimization", variant) for variant in variants),
    )
    text = f"{block.text} {SIGNS_LEGEND} {_told(spec, absent)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def beside(block: Block, spec: Spec, frame: Frame) -> Table:
    """For each row and variant that was timed, the speed-up on one workload beside that on another."""
    fields, notes = block.fields, Notes()
    rows = []
    for label, pair in fields["rows"].items():
        named = [pair["alone"], pair["within"]]
        where = {**fields["where"], "workload": named}
        for variant in _timed_arms(frame, named, frame.values("optimization", where), fields)[0]:
            cells = [_speed_up(frame, notes, workload, variant, fields) for workload in named]
            name = Text(spec.name("optimization", variant), look="word")
            rows.append((Text(label, look="word"), name, *cells))
    header = (fields["heading"] or "Part", "Optimization", fields["alone"], fields["within"])
    text = f"{block.text} {SIGNS_LEGEND}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def _timed_arms(
    frame: Frame, workloads: Sequence[str], variants: Sequence[str], fields: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """The variants with a time on any of the workloads, and those without; the baseline is among neither."""
    others = [variant for variant in variants if variant != fields["baseline"]]
    place = fields["metric"], fields["method"]
    timed = [
        variant for variant in others if any(frame.get(workload, variant, *place) for workload in workloads)
    ]
    return timed, [variant for variant in others if variant not in timed]


def _told(spec: Spec, absent: Sequence[str]) -> str:
    names = ", ".join(spec.name("optimization", variant) for variant in absent)
    return f"Not timed on any of these: {names}." if names else ""


def _speed_up(frame: Frame, notes: Notes, workload: str, variant: str, fields: Mapping[str, Any]) -> Text:
    found = compared(frame, workload, variant, fields)
    if found is None:
        return reasoned(notes, why_none(frame, workload, variant, fields))
    if variant == fields["noise"]:
        return Text(found.text, found.cell)
    return Text(f"{SIGNS[found.word]} {found.text}", found.cell, LOOKS[found.word])
