"""Draw one horizontal bar per variant, stacked by metric, the shortest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.figures.axes import linear, tick_text, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins
from harness.report.figures.svg import LIGHT, SERIES, SMALL, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.units import human

ROW = 30


class Bar(NamedTuple):
    """One variant's bar: its parts in the order of the stack, None where one was not recorded."""

    name: str
    parts: tuple[Value | None, ...]

    @property
    def length(self) -> float:
        """Return the sum of the recorded parts."""
        return sum(part.median for part in self.parts if part)

    @property
    def total(self) -> str:
        """Return the sum as text; `+ ?` where a part is missing."""
        unit = next(part.unit for part in self.parts if part)
        text = tick_text(self.length, "1") if unit == "1" and self.length >= 1e4 else human(self.length, unit)
        return text + ("" if all(self.parts) else " + ?")


def bars(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, None with fewer than two bars."""
    stacks: Mapping[str, str] = block.fields["stacks"]
    rows = _bars(block, spec, index)
    if len(rows) < 2 or rows[-1].length <= 0:
        return None
    drawing = Drawing(block.id, 74 + ROW * len(rows) + (28 if len(stacks) > 1 else 0))
    axes = drawing.axes
    for i, (metric, label) in enumerate(stacks.items()):
        _stack(drawing, rows, i, label, metric)
    for y, row in enumerate(rows):
        drawing.name(row.total, (row.length, y), 6)
    values = [part for row in rows for part in row.parts if part]
    linear(axes, "x", 0, rows[-1].length * 1.12, values[0].unit)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], color=LIGHT["ink"])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    name = block.fields["x_title"] or spec.name("metric", next(iter(stacks)))
    x_title(axes, f"{name} ({origins(value.origin for value in values)})")
    if len(stacks) > 1:
        drawing.canvas.legend(loc="outside upper left", ncols=len(stacks), frameon=False, fontsize=SMALL,
                              handlelength=1.1, columnspacing=1.4)  # fmt: skip
    return drawing.finish(block.title, block.text, alt_text(block.title, (row.name for row in rows)))


def _bars(block: ReportBlock, spec: Spec, index: ResultIndex) -> list[Bar]:
    """Return the variants that have any of the metrics, the shortest first."""
    rows = []
    for workload in index.names("workload", block.fields["where"]):
        for variant in index.names("optimization", block.fields["where"]):
            parts = tuple(
                index.get(workload, variant, metric, block.fields["method"])
                for metric in block.fields["stacks"]
            )
            if any(parts):
                rows.append(Bar(spec.name("optimization", variant), parts))
    return sorted(rows, key=lambda row: row.length)


def _stack(drawing: Drawing, rows: list[Bar], i: int, label: str, metric: str) -> None:
    """Draw one metric's part of every bar that has some."""
    drawn = [
        (y, part, sum(one.median for one in row.parts[:i] if one))
        for y, row in enumerate(rows)
        if (part := row.parts[i]) and part.median > 0
    ]
    colour = SERIES[i % len(SERIES)]
    drawing.axes.barh([-9], [0], color=colour, label=label)  # the legend's
    for y, part, left in drawn:
        text = f"{rows[y].name} · {label}: {human(part.median, part.unit)}"
        (bar,) = drawing.axes.barh([y], [part.median], left=[left], height=0.66, color=colour)
        bar.set_gid(drawing.tip([Tip(text, part.cell)], i))
