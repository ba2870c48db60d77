"""Draw what the report of this suite alone shows: when each lane of a run was busy."""

from __future__ import annotations

from typing import NamedTuple

from harness.records import Record
from harness.report.axes import FONT, LIGHT, SERIES, Tip, linear, x_title
from harness.report.figure import Drawing, Figure, alt_text, origins
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, Spec
from harness.units import human

ROW = 26
HEAD = 1.15  # rows that the title of a panel takes


class Panel(NamedTuple):
    """One run of a variant: when each lane was busy, by its name."""

    variant: str
    cell: str
    unit: str
    origin: str
    lanes: dict[str, list[tuple[float, float]]]

    @property
    def end(self) -> float:
        """Return when its last lane ended."""
        return max(end for spans in self.lanes.values() for _, end in spans)

    @property
    def text(self) -> str:
        """Return the variant with its end."""
        return f"{self.variant}: {human(self.end, self.unit)}"


def timeline(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure of the first workload that has both metrics; None where none has."""
    for workload in index.names("workload", block.where):
        panels = [
            panel
            for variant in index.names("optimization", block.where)
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
    lanes = {
        name: list(zip(begin.samples, ends[name].samples, strict=True))
        for name, begin in begins.items()
        if name in ends and len(begin.samples) == len(ends[name].samples)
    }
    if not lanes:
        return None
    first = next(iter(begins.values()))
    return Panel(variant, record.cell.id, first.unit, first.origin, lanes)


def _kind(lane: str) -> str:
    """Return a lane's name without the rank before it: lanes of one kind have one colour."""
    return lane.rpartition(", ")[2]


def _drawn(block: OwnFigureBlock, panels: list[Panel]) -> Figure:
    drawing = Drawing(block.id, 70 + ROW * sum(len(panel.lanes) + HEAD for panel in panels))
    axes = drawing.axes
    kinds = list(dict.fromkeys(_kind(lane) for panel in panels for lane in panel.lanes))
    names: dict[float, str] = {}
    top = 0.0
    for panel in panels:
        axes.annotate(panel.text, (0, top + HEAD / 2), fontsize=FONT, color=LIGHT["ink"], va="center")
        top += HEAD
        first = top
        for lane, spans in panel.lanes.items():
            names[top + 0.5] = lane
            kind = kinds.index(_kind(lane))
            for begin, end in spans:  # with a gap between neighbours
                (bar,) = axes.barh(
                    [top + 0.5], [end - begin], left=[begin], height=0.72, color=SERIES[kind % len(SERIES)],
                    edgecolor=LIGHT["ground"], linewidth=0.8,
                )  # fmt: skip
                when = " to ".join(human(at, panel.unit) for at in (begin, end))
                bar.set_gid(drawing.tip([Tip(f"{panel.variant} · {lane}: {when}", panel.cell)], kind))
            top += 1
        axes.plot([panel.end] * 2, [first, top], color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 3)))
    linear(axes, "x", 0, 1.02 * max(panel.end for panel in panels), panels[0].unit)
    axes.set_ylim(top, 0)
    axes.set_yticks(list(names), list(names.values()), color=LIGHT["ink"])
    axes.tick_params(length=0)
    x_title(axes, f"Time from the start of the run ({origins(panel.origin for panel in panels)})")
    return drawing.finish(block.title, block.text, alt_text(block.title, (panel.text for panel in panels)))
