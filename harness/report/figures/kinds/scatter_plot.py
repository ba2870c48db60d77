"""Draw one metric over another, a named dot per variant."""

from __future__ import annotations

from harness.report.data.result_index import ResultIndex
from harness.report.figures.axes import fitted, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins, y_title
from harness.report.figures.kinds.line_plot import LinePoint, point
from harness.report.figures.point_labels import name_points
from harness.report.figures.svg import SMALL, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.units import human


def scatter(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None with fewer than two dots."""
    dots = _dots(block, spec, index)
    if len(dots) < 2:
        return None
    drawing = Drawing(block.id, 400)
    for which, values in (("x", [dot.x for dot in dots]), ("y", [dot.y for dot in dots])):
        room = max(1.04, (max(values) / min(values)) ** 0.1)
        unit = dots[0].value.unit if which == "y" else _unit(block, index, dots[0])
        fitted(drawing.axes, which, min(values) / room, max(values) * room, unit)
    for i, dot in enumerate(dots):
        shown = human(dot.y, dot.value.unit)
        drawing.points([(dot.x, dot.y)], [Tip(f"{dot.name}: {shown}", dot.value.cell)], i, size=9)
    places = [(dot.x, dot.y) for dot in dots]
    name_points(drawing, [(dot.name, (dot.x, dot.y)) for dot in dots], places, SMALL)
    x_title(drawing.axes, block.fields["x"]["title"])
    y_title(drawing, f"{block.fields['y']['title']} ({origins(dot.value.origin for dot in dots)})")
    return drawing.finish(block.title, block.text, alt_text(block.title, (dot.name for dot in dots)))


def _dots(block: ReportBlock, spec: Spec, index: ResultIndex) -> list[LinePoint]:
    """Return a dot per variant that has both metrics, on the first workload that has any."""
    where = block.fields["where"]
    for workload in index.names("workload", where):
        dots = [
            dot
            for variant in index.names("optimization", where)
            if (dot := point(block, index, spec.name("optimization", variant), workload, variant))
        ]
        if dots:
            return dots
    return []


def _unit(block: ReportBlock, index: ResultIndex, dot: LinePoint) -> str:
    axis = block.fields["x"]
    value = index.get(dot.value.workload, dot.value.optimization, axis["metric"], axis["method"])
    return value.unit if value and not axis["per"] else "1"
