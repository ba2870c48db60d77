"""Draw times: when lanes of a run were busy, and metrics over one run of a cell.

Draw when each lane of a run was busy: a row per lane, a panel per variant, one axis of time for all.

Draw metrics over one run of a cell, stacked, with its phases and its peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.records import Measurement, Record
from harness.report.data.result_index import ResultIndex
from harness.report.figures.axes import FONT, LETTER, LIGHT, SERIES, SMALL, WIDTH, Tip, apart, linear, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins, y_title
from harness.report.language.spec import ReportBlock, Spec
from harness.units import human

ROW = 26
HEAD = 1.15
"""Rows that the title of a panel takes."""


class Lane(NamedTuple):
    """One row: its name, and when it was busy."""

    name: str
    spans: tuple[tuple[float, float], ...]

    @property
    def kind(self) -> str:
        """Return its name without the rank before it: lanes of one kind have one colour."""
        return self.name.rpartition(", ")[2]


class Panel(NamedTuple):
    """The lanes of one run of a variant."""

    variant: str
    cell: str
    unit: str
    origin: str
    lanes: tuple[Lane, ...]

    @property
    def end(self) -> float:
        """Return when its last lane ended."""
        return max(end for lane in self.lanes for _, end in lane.spans)

    @property
    def text(self) -> str:
        """Return the variant with its end."""
        return f"{self.variant}: {human(self.end, self.unit)}"


def spans(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure of the first workload that has both metrics; None where none has."""
    where = block.fields["where"]
    for workload in index.names("workload", where):
        panels = [
            panel
            for variant in index.names("optimization", where)
            for record in index.right(workload, variant)[:1]
            if (panel := _panel(block, spec.name("optimization", variant), record))
        ]
        if panels:
            return _drawn(block, panels)
    return None


def _panel(block: ReportBlock, variant: str, record: Record) -> Panel | None:
    """Return the lanes that have as many ends as begins, in the order recorded; None without any."""
    begins, ends = (
        {one.method: one for one in record.measurements if one.metric == block.fields[metric]}
        for metric in ("begin", "end")
    )
    both: dict[str, tuple[Measurement, Measurement]] = {
        method: (one, ends[method])
        for method, one in begins.items()
        if method in ends and len(one.samples) == len(ends[method].samples)
    }
    lanes = tuple(
        Lane(method, tuple(zip(begin.samples, end.samples, strict=True)))
        for method, (begin, end) in both.items()
    )
    if not lanes:
        return None
    first = next(iter(begins.values()))
    return Panel(variant, record.cell.id, first.unit, first.origin, lanes)


def _drawn(block: ReportBlock, panels: list[Panel]) -> Figure:
    rows = sum(len(panel.lanes) + HEAD for panel in panels)
    drawing = Drawing(block.id, 70 + ROW * rows)
    axes = drawing.axes
    kinds = list(dict.fromkeys(lane.kind for panel in panels for lane in panel.lanes))
    names: dict[float, str] = {}
    top = 0.0
    for panel in panels:
        axes.annotate(panel.text, (0, top + HEAD / 2), fontsize=FONT, color=LIGHT["ink"], va="center")
        top += HEAD
        first = top
        for lane in panel.lanes:
            names[top + 0.5] = lane.name
            _row(drawing, panel, lane, top + 0.5, kinds.index(lane.kind))
            top += 1
        axes.plot([panel.end] * 2, [first, top], color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 3)))
    linear(axes, "x", 0, 1.02 * max(panel.end for panel in panels), panels[0].unit)
    axes.set_ylim(top, 0)
    axes.set_yticks(list(names), list(names.values()), color=LIGHT["ink"])
    axes.tick_params(length=0)
    title = block.fields["x_title"] or "Time"
    x_title(axes, f"{title} ({origins(panel.origin for panel in panels)})")
    return drawing.finish(block.title, block.text, alt_text(block.title, (panel.text for panel in panels)))


def _row(drawing: Drawing, panel: Panel, lane: Lane, y: float, kind: int) -> None:
    """Draw a lane's bars, with a gap between neighbours."""
    colour = SERIES[kind % len(SERIES)]
    for begin, end in lane.spans:
        (bar,) = drawing.axes.barh(
            [y], [end - begin], left=[begin], height=0.72, color=colour,
            edgecolor=LIGHT["ground"], linewidth=0.8,
        )  # fmt: skip
        ends = " to ".join(human(at, panel.unit) for at in (begin, end))
        tip = Tip(f"{panel.variant} · {lane.name}: {ends}", panel.cell)
        bar.set_gid(drawing.tip([tip], kind))


INNER_PX = 0.9 * WIDTH
"""About the width between the axes' ends."""


def stacked_timeline(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure of the first workload that has the metrics; None where none has."""
    fields = block.fields
    for workload in index.names("workload", fields["where"]):
        record = next(iter(index.right(workload, fields["optimization"])), None)
        series = {} if record is None else _series(record, fields["stacks"])
        if record is not None and series:
            return _drawn_metrics(block, spec, record, series)
    return None


def _series(record: Record, stacks: Mapping[str, str]) -> dict[str, tuple[float, ...]]:
    """Return the samples of each metric that has some above zero, by its label."""
    samples = {one.metric: tuple(one.samples) for one in record.measurements}
    found = {label: samples[metric] for metric, label in stacks.items() if metric in samples}
    return {label: values for label, values in found.items() if max(values) > 0}


def _drawn_metrics(
    block: ReportBlock, spec: Spec, record: Record, series: Mapping[str, tuple[float, ...]]
) -> Figure:
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
