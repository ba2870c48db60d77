"""Draw what the report of this suite alone shows."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.axes import SMALL, Tip, fitted, x_title
from harness.report.figure import Drawing, Figure, alt_text, name_points, origins, y_title
from harness.report.results import ResultIndex, Value
from harness.report.spec import OwnFigureBlock, Spec
from harness.units import human

METHOD = "fluid"


def trade_off(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Draw the mean queue over completion, a named dot per control; None with fewer than two dots."""
    dots = [
        (spec.name("optimization", control), across, up)
        for control in index.names("optimization", block.where)
        for workload in [block.where["workload"]]
        if (across := index.get(workload, control, "completion", METHOD))
        and (up := index.get(workload, control, "queue_mean", METHOD))
        and min(across.median, up.median) > 0
    ]
    if len(dots) < 2:
        return None
    drawing = Drawing(block.id, 400)
    fitted(drawing.axes, "x", *_ends([x for _, x, _ in dots]), dots[0][1].unit)
    fitted(drawing.axes, "y", *_ends([y for _, _, y in dots]), dots[0][2].unit)
    for i, (name, x, y) in enumerate(dots):
        tip = Tip(f"{name}: {human(y.median, y.unit)}", y.cell)
        drawing.points([(x.median, y.median)], [tip], i, size=9)
    named = [(name, (x.median, y.median)) for name, x, y in dots]
    name_points(drawing, named, [place for _, place in named], SMALL)
    x_title(drawing.axes, "Completion")
    y_title(drawing, f"Mean queue in the switch ({origins(y.origin for _, _, y in dots)})")
    return drawing.finish(block.title, block.text, alt_text(block.title, (name for name, _ in named)))


def _ends(values: Sequence[Value]) -> tuple[float, float]:
    """Return the ends of an axis with room beyond its outer values."""
    low, high = min(one.median for one in values), max(one.median for one in values)
    room = max(1.04, (high / low) ** 0.1)
    return low / room, high * room
