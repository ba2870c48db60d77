"""Draw what the report of this suite alone shows: when each lane of a run was busy."""

from __future__ import annotations

from typing import NamedTuple

from harness.records import Measurement, Record
from harness.report.axes import FONT, LIGHT, SERIES, Tip, linear, x_title
from harness.report.figure import Drawing, Figure, alt_text, origins
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, Spec
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


def timeline(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure of the first workload that has both metrics; None where none has."""
    where = block.where
    for workload in index.names("workload", where):
        panels = [
            panel
            for variant in index.names("optimization", where)
            for record in index.right(workload, variant)[:1]
            if (panel := _panel(spec.name("optimization", variant), record))
        ]
        if panels:
            return _drawn(block, panels)
    return None


def _panel(variant: str, record: Record) -> Panel | None:
    """Return the lanes that have as many ends as begins, in the order recorded; None without any."""
    begins, ends = (
        {one.method: one for one in record.measurements if one.metric == metric}
        for metric in ("span_begin", "span_end")
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


def _drawn(block: OwnFigureBlock, panels: list[Panel]) -> Figure:
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
    x_title(axes, f"Time from the start of the run ({origins(panel.origin for panel in panels)})")
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
