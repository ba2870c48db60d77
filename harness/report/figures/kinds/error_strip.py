"""Draw the error of each method, a point per cell, about zero; linear near zero, logarithmic beyond."""

from __future__ import annotations

from harness.report.data.result_index import ResultIndex, Value
from harness.report.figures.axes import set_ticks, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins
from harness.report.figures.svg import LIGHT, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import percent

ROW = 36
NEAR = 0.001
"""Relative errors are drawn to a linear scale within this, logarithmic beyond."""

TICKS = (-1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1, 10, 100)
"""No estimate can be more than all too low."""


def error_strip(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, the most accurate method first; None with fewer than two errors."""
    groups: dict[str, list[Value]] = {}
    for one in index.select(block.fields["metric"], block.fields["where"]):
        groups.setdefault(one.method, []).append(one)
    if sum(map(len, groups.values())) < 2:
        return None
    methods = sorted(groups, key=lambda method: max(abs(one.median) for one in groups[method]))
    drawing = Drawing(block.id, 70 + ROW * len(methods))
    axes = drawing.axes
    reach = max(NEAR, 1.3 * max(abs(one.median) for group in groups.values() for one in group))
    axes.set_xscale("symlog", linthresh=NEAR, linscale=0.7)
    lowest = min(one.median for group in groups.values() for one in group)
    axes.set_xlim(max(-1.6, min(1.3 * lowest, -NEAR)), reach)
    low, high = axes.get_xlim()
    set_ticks(axes.xaxis, [tick for tick in TICKS if low <= tick <= high], "%")
    axes.grid(axis="x")
    axes.axvline(0, color=LIGHT["ink"], linewidth=1.2)
    for row, method in enumerate(methods):
        places = [(one.median, row + (i * 7 % 11 - 5) * 0.05) for i, one in enumerate(groups[method])]
        drawing.points(places, [_tip(spec, one) for one in groups[method]], faded=True, size=7)
    names = [f"{spec.name('method', one)} ({origins(v.origin for v in groups[one])})" for one in methods]
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.set_yticks(range(len(methods)), names, color=LIGHT["ink"])
    axes.tick_params(length=0)
    x_title(axes, block.fields["x_title"] or spec.name("metric", block.fields["metric"]))
    return drawing.finish(block.title, block.text, alt_text(block.title, names))


def _tip(spec: Spec, one: Value) -> Tip:
    place = f"{spec.name('optimization', one.optimization)}, {spec.name('workload', one.workload)}"
    return Tip(f"{place}: {percent(one.median, True)}", one.cell)
