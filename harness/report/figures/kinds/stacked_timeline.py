"""Draw metrics over one run of a cell, stacked, with its phases and its peak."""

from __future__ import annotations

from collections.abc import Mapping

from harness.records import Record
from harness.report.data.result_index import ResultIndex
from harness.report.figures.axes import LETTER, apart, linear, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins, y_title
from harness.report.figures.svg import LIGHT, SERIES, SMALL, WIDTH, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.units import human

INNER_PX = 0.9 * WIDTH
"""About the width between the axes' ends."""


def stacked_timeline(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure of the first workload that has the metrics; None where none has."""
    fields = block.fields
    for workload in index.names("workload", fields["where"]):
        record = next(iter(index.right(workload, fields["optimization"])), None)
        series = {} if record is None else _series(record, fields["stacks"])
        if record is not None and series:
            return _drawn(block, spec, record, series)
    return None


def _series(record: Record, stacks: Mapping[str, str]) -> dict[str, tuple[float, ...]]:
    """Return the samples of each metric that has some above zero, by its label."""
    samples = {one.metric: tuple(one.samples) for one in record.measurements}
    found = {label: samples[metric] for metric, label in stacks.items() if metric in samples}
    return {label: values for label, values in found.items() if max(values) > 0}


def _drawn(block: ReportBlock, spec: Spec, record: Record, series: Mapping[str, tuple[float, ...]]) -> Figure:
    drawing = Drawing(block.id, 360)
    axes = drawing.axes
    totals = [sum(point) for point in zip(*series.values(), strict=True)]
    points = range(len(totals))
    colours = [SERIES[i % len(SERIES)] for i in range(len(series))]
    axes.stackplot(points, *series.values(), labels=list(series), colors=colours, linewidth=0)
    peak = max(points, key=totals.__getitem__)
    stacks = block.fields["stacks"]
    one = next(m for m in record.measurements if m.metric in stacks)
    text = f"peak: {human(totals[peak], one.unit)}{_explained(record, block.fields['peak_note'])}"
    drawing.points([(peak, totals[peak])], [Tip(text, record.cell.id)], len(series))
    _name_peak(drawing, text, peak / max(len(totals) - 1, 1), (peak, totals[peak]))
    linear(axes, "y", 0, max(totals) * 1.18, one.unit)
    axes.set_xlim(0, len(totals) - 1)
    phases = _phases(record, block.fields["phases"])
    named = apart({
        begins: ((begins / len(totals) + 0.5 * share) * INNER_PX, share * INNER_PX)
        for name, begins in phases.items()
        for share in [LETTER * SMALL * len(name) / INNER_PX]
    })  # fmt: skip
    for name, begins in phases.items():
        axes.axvline(begins, color=LIGHT["soft"], linewidth=0.8, linestyle=(0, (2, 3)))
        if begins not in named:
            continue
        axes.annotate(name, (begins, 1), xycoords=("data", "axes fraction"), xytext=(4, -6),
                      textcoords="offset points", fontsize=SMALL, color=LIGHT["soft"], va="top")  # fmt: skip
    axes.set_xticks([])
    x_title(axes, block.fields["x_title"])
    variant = spec.name("optimization", block.fields["optimization"])
    y_title(drawing, f"{block.fields['y_title']} ({origins([one.origin])})")
    drawing.canvas.legend(loc="outside lower left", ncols=len(series), frameon=False, fontsize=SMALL,
                          handlelength=1.1, columnspacing=1.4)  # fmt: skip
    return drawing.finish(block.title, block.text, alt_text(f"{block.title}, {variant}, {text}", series))


def _name_peak(drawing: Drawing, text: str, share: float, place: tuple[float, float]) -> None:
    """Write the text above the peak, which lies at `share` of the width, on the side where it has room."""
    wide = LETTER * SMALL * len(text) / INNER_PX
    if share + wide < 1:
        drawing.name(text, place, 10, 12)
    elif share > wide:
        drawing.name(text, place, -10, 12)
    else:
        drawing.name(text, (0, place[1]), 4, 14)


def _explained(record: Record, beginning: str) -> str:
    """Return what a note of the record says after `beginning`, if it has one."""
    notes = [
        note.removeprefix(beginning) for note in record.notes if beginning and note.startswith(beginning)
    ]
    return f", {notes[0].strip()}" if notes else ""


def _phases(record: Record, metric: str) -> dict[str, float]:
    """Return where each phase begins, of those phases that are wide enough for their names."""
    begins = {
        one.metric.removeprefix(f"{metric}/"): one.samples[0]
        for one in record.measurements
        if one.metric.startswith(f"{metric}/")
    }
    if not any(name.endswith(" 1") for name in begins):  # one micro-batch
        begins = {name.removesuffix(" 0"): at for name, at in begins.items()}
    ordered = sorted(begins.items(), key=lambda phase: phase[1])
    following = [begin for _, begin in ordered[1:]] + [float("inf")]
    return {name: at for (name, at), end in zip(ordered, following, strict=True) if end - at > 12}
