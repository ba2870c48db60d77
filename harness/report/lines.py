"""Figures -> a picture: one line a variant over sizes, or one a workload over links; with intervals if
any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from harness.report.compared import compared
from harness.report.figures import alt, origins
from harness.report.frame import Figure, Frame
from harness.report.spec import Block, Spec
from harness.report.svg import SERIES, WIDTH, Canvas, Picture, log_ticks, logarithmic, width_of
from harness.report.tables import divided
from harness.units import human, in_unit, number


class Point(NamedTuple):
    """One point of a line; `low` and `high` are the ends of its interval, the same where it has none."""

    x: float
    y: float
    name: str
    figure: Figure
    low: float
    high: float


def lines(block: Block, spec: Spec, frame: Frame) -> Picture | None:
    """One line a variant over its workloads, or one a workload over its variants, on logarithmic axes."""
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
    top, bottom = legend + 20, legend + 330
    right = WIDTH - max([14.0, *(width_of(name, 12) + 8 for name in references)])
    heights = [end for p in points for end in (p.low, p.high)] + list(references.values())
    low, high = min(heights) / 1.12, max(heights) * 1.12
    left = max([66.0, *(width_of(number(tick)) + 12 for tick in log_ticks(low, high))])
    up = logarithmic(low, high, bottom, top)
    x_low, x_high = min(p.x for p in points), max(p.x for p in points)
    across = logarithmic(x_low / 1.3, x_high * 1.3, left, right)
    for tick in log_ticks(low, high):
        canvas.line(left, up(tick), right, up(tick))
        canvas.text(left - 8, up(tick), number(tick), "end", "soft")
    names = {p.name: across(p.x) for p in points}
    shown = _apart(names)
    for name, place in names.items():
        canvas.line(place, top, place, bottom)
        if name in shown:
            canvas.text(place, bottom + 14, name, "middle")
    for label, value in references.items():
        canvas.line(left, up(value), right, up(value), "ink", 1.2, "5 4")
        canvas.text(right + 6, up(value), label, size=12)
    for i, (one, line) in enumerate(series.items()):
        colour = f"s{i % SERIES}"
        canvas.path([(across(p.x), up(p.y)) for p in line], colour)
        for p in line:
            tip = f"{one}, {p.name}: {number(p.y)}"
            if p.low != p.high:
                canvas.line(across(p.x), up(p.low), across(p.x), up(p.high), colour, 2)
                tip += f" ({number(p.low)} … {number(p.high)})"
            canvas.dot(across(p.x), up(p.y), 4.5, colour, tip)
    for i, (one, line) in enumerate(series.items()):
        if mark := _mark(block, frame, line):
            canvas.ring(across(mark.x), up(mark.y), 5.5, f"s{i % SERIES}", f"{one}: {mark.name}")
    canvas.text((left + right) / 2, bottom + 34, block.fields["x"]["title"], "middle", "soft")
    return canvas.picture(block.id, block.title, block.text, alt(block, series), bottom + 48)


def _series(block: Block, spec: Spec, frame: Frame) -> dict[str, list[Point]]:
    """For each line its points from left to right, named by what differs along it or by a field of that."""
    where, key = block.fields["where"], block.fields["line"]
    along = "workload" if key == "optimization" else "optimization"
    series = {}
    for one in frame.values(key, where):
        places = [{key: one, along: other} for other in frame.values(along, where)]
        named = [(spec.name(along, place[along]).partition(" (")[0], place) for place in places]
        found = [_point(block, frame, name, **place) for name, place in named]
        points = [point for point in found if point is not None]
        if points:
            series[spec.name(key, one)] = sorted(points)
    return series


def _point(block: Block, frame: Frame, name: str, workload: str, optimization: str) -> Point | None:
    x_axis, y_axis = block.fields["x"], block.fields["y"]
    if x_axis["field"]:
        x = frame.field(workload, x_axis["field"])
        name = number(x, 6) if x else ""
    else:
        across = _figure(frame, workload, optimization, x_axis)
        x = across.value if across else None
    y = _figure(frame, workload, optimization, y_axis)
    if x is None or y is None:
        return None
    if not y_axis["against"]:
        value = in_unit(y.value, y.unit, y_axis["unit"])
        return Point(x, value, name, y, value, value)
    found = compared(frame, workload, optimization, {**y_axis, "baseline": y_axis["against"], "noise": ""})
    if found is None or optimization == y_axis["against"]:
        return None
    return Point(x, found.speed_up.value, name, y, found.speed_up.low, found.speed_up.high)


def _figure(frame: Frame, workload: str, variant: str, axis: Mapping[str, Any]) -> Figure | None:
    figure = frame.get(workload, variant, axis["metric"], axis["method"])
    if figure is not None and axis["per"]:
        figure = divided(figure, frame, axis["per"])
    return figure if figure and figure.value > 0 else None


def _apart(places: Mapping[str, float]) -> list[str]:
    """Names that do not touch where each stands: the first, those after it that have room, and the last."""
    ordered = sorted(places, key=lambda name: places[name])

    def room(left: str, right: str) -> bool:
        return places[right] - places[left] >= (width_of(left) + width_of(right)) / 2

    kept, last = ordered[:1], ordered[-1]
    for name in ordered[1:-1]:
        if room(kept[-1], name) and room(name, last):
            kept.append(name)
    return [*kept, last] if room(kept[-1], last) else kept


def _mark(block: Block, frame: Frame, line: Sequence[Point]) -> Point | None:
    """Where a line's ring stands: on it, at the mark of its first cell that has one; None beyond its ends."""
    if not block.fields["mark"]:
        return None
    metric, method, title = (block.fields["mark"][name] for name in ("metric", "method", "title"))
    found = (frame.get(p.figure.workload, p.figure.optimization, metric, method) for p in line)
    mark = next((figure for figure in found if figure), None)
    for left, right in pairwise(line):
        if mark and left.x <= mark.value <= right.x and left.x < right.x:
            y = left.y * (right.y / left.y) ** (math.log(mark.value / left.x) / math.log(right.x / left.x))
            return Point(mark.value, y, f"{human(mark.value, mark.unit)} {title}".rstrip(), mark, y, y)
    return None
