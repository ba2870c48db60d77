"""Figures -> a picture: one line an arm over sizes or lengths, with intervals where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.report.compared import compared
from harness.report.figures import alt, origins
from harness.report.frame import Figure, Frame
from harness.report.spec import Block, Spec
from harness.report.svg import SERIES, WIDTH, Canvas, Picture, log_ticks, logarithmic, width_of
from harness.report.tables import divided
from harness.report.units import in_unit, number


class Point(NamedTuple):
    """One point of a line; `low` and `high` are the ends of its interval, the same where it has none."""

    x: float
    y: float
    name: str
    figure: Figure
    low: float
    high: float


def lines(block: Block, spec: Spec, frame: Frame) -> Picture | None:
    """One line an arm over its workloads, on logarithmic axes."""
    series = _series(block, spec, frame)
    if not series:
        return None
    references: Mapping[str, float] = block.fields["references"]
    points = [point for line in series.values() for point in line]
    canvas = Canvas()
    legend = canvas.legend(list(series))
    canvas.text(
        4, legend + 2, f"{block.fields['y']['title']} {origins(p.figure for p in points)}", role="soft"
    )
    top, bottom, left = legend + 20, legend + 330, 66.0
    right = WIDTH - max([14.0, *(width_of(name, 12) + 8 for name in references)])
    heights = [end for p in points for end in (p.low, p.high)] + list(references.values())
    low, high = min(heights) / 1.12, max(heights) * 1.12
    up = logarithmic(low, high, bottom, top)
    x_low, x_high = min(p.x for p in points), max(p.x for p in points)
    across = logarithmic(x_low / 1.3, x_high * 1.3, left, right)
    for tick in log_ticks(low, high):
        canvas.line(left, up(tick), right, up(tick))
        canvas.text(left - 8, up(tick), number(tick), "end", "soft")
    for name, x in {p.name: p.x for p in points}.items():
        canvas.line(across(x), top, across(x), bottom)
        canvas.text(across(x), bottom + 14, name, "middle")
    for label, value in references.items():
        canvas.line(left, up(value), right, up(value), "ink", 1.2, "5 4")
        canvas.text(right + 6, up(value), label, size=12)
    for i, (arm, line) in enumerate(series.items()):
        colour = f"s{i % SERIES}"
        canvas.path([(across(p.x), up(p.y)) for p in line], colour)
        for p in line:
            tip = f"{arm}, {p.name}: {number(p.y)}"
            if p.low != p.high:
                canvas.line(across(p.x), up(p.low), across(p.x), up(p.high), colour, 2)
                tip += f" ({number(p.low)} … {number(p.high)})"
            canvas.dot(across(p.x), up(p.y), 4.5, colour, tip)
    canvas.text((left + right) / 2, bottom + 34, block.fields["x"]["title"], "middle", "soft")
    return canvas.picture(block.id, block.title, block.text, alt(block, series), bottom + 48)


def _series(block: Block, spec: Spec, frame: Frame) -> dict[str, list[Point]]:
    """For each arm its points from left to right, named by the workload or by its field."""
    where = block.fields["where"]
    series = {}
    for arm in frame.values("optimization", where):
        found = [_point(block, spec, frame, workload, arm) for workload in frame.values("workload", where)]
        points = [point for point in found if point is not None]
        if points:
            series[spec.name("optimization", arm)] = sorted(points)
    return series


def _point(block: Block, spec: Spec, frame: Frame, workload: str, arm: str) -> Point | None:
    x_axis, y_axis = block.fields["x"], block.fields["y"]
    name = spec.name("workload", workload).partition(" (")[0]
    if x_axis["field"]:
        x = frame.field(workload, x_axis["field"])
        name = number(x, 6) if x else ""
    else:
        across = _figure(frame, workload, arm, x_axis)
        x = across.value if across else None
    y = _figure(frame, workload, arm, y_axis)
    if x is None or y is None:
        return None
    if not y_axis["against"]:
        value = in_unit(y.value, y.unit, y_axis["unit"])
        return Point(x, value, name, y, value, value)
    found = compared(frame, workload, arm, {**y_axis, "baseline": y_axis["against"], "noise": ""})
    if found is None or arm == y_axis["against"]:
        return None
    return Point(x, found.speed_up.value, name, y, found.speed_up.low, found.speed_up.high)


def _figure(frame: Frame, workload: str, arm: str, axis: Mapping[str, Any]) -> Figure | None:
    figure = frame.get(workload, arm, axis["metric"], axis["method"])
    if figure is not None and axis["per"]:
        figure = divided(figure, frame, axis["per"])
    return figure if figure and figure.value > 0 else None
