"""Draw points: one metric over another, errors about zero, and rates under a roofline.

Draw one metric over another, a named dot per variant.

Draw the error of each method, a point per cell, about zero; linear near zero, logarithmic beyond.

Draw the roofline: FLOP/s reached over FLOPs per byte, under the roofs that this host reached.

Write names next to points, where they touch no other name and no point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.figures.axes import LETTER, LIGHT, SMALL, Tip, fitted, logarithmic, set_ticks, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins, y_title
from harness.report.figures.kinds.lines import LinePoint, point
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.effect_tables import Rates, rates
from harness.report.tables.tables import percent
from harness.units import human

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


_OFFSETS = ((8, 0), (-8, 0), (0, 13), (0, -13), (8, 12), (8, -12), (-8, 12), (-8, -12), (8, 18), (8, -18))
_HALF_MARK, _HALF_LINE = 5.0, 6.0

Place = tuple[float, float]


def name_points(
    drawing: Drawing, names: Iterable[tuple[str, Place]], points: Sequence[Place], size: float
) -> None:
    """Write each name next to its place, unless it has no room; `points`: all that is drawn."""
    drawing.canvas.draw_without_rendering()
    to_px, inside = drawing.axes.transData.transform, drawing.axes.bbox
    boxes: list[tuple[float, float, float, float]] = []
    for mark in points:
        x, y = map(float, to_px(mark))
        boxes.append((x - _HALF_MARK, x + _HALF_MARK, y - _HALF_MARK, y + _HALF_MARK))
    for name, place in names:
        x, y = map(float, to_px(place))
        wide = LETTER * size * len(name)
        for dx, dy in _OFFSETS:
            left = x + dx - (wide / 2 if dx == 0 else wide if dx < 0 else 0)
            box = (left, left + wide, y + dy - _HALF_LINE, y + dy + _HALF_LINE)
            if inside.x0 < left and box[1] < inside.x1 and not any(_overlap(box, other) for other in boxes):
                boxes.append(box)
                drawing.name(name, place, dx, dy, size=size)
                break


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


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


class RooflinePoint(NamedTuple):
    """One workload by one variant: FLOPs per byte, and FLOP/s reached."""

    intensity: float
    rate: float
    tip: Tip
    value: Value


TINY = 10.5
"""Size of the names next to points."""


def roofline_plot(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, both axes logarithmic; None with fewer than two times."""
    variants = index.names("optimization", block.fields["where"], block.fields["metric"])
    series = {variant: list(_points(block, spec, index, variant)) for variant in variants}
    series = {variant: points for variant, points in series.items() if points}
    every = [point for points in series.values() for point in points]
    if len(every) < 2:
        return None
    measured = rates(block.fields, index)
    drawing = Drawing(block.id, 470)
    axes = drawing.axes
    known = [rate for rate in measured.compute.values() if rate]
    x_ends = min(p.intensity for p in every) / 1.5, max(p.intensity for p in every) * 1.8
    y_ends = min(p.rate for p in every) / 1.5, max([*(p.rate for p in every), *known]) * 1.6
    logarithmic(axes, "y", *y_ends, "FLOP/s")
    logarithmic(axes, "x", *x_ends, "1")
    for name, corners in _roofs(measured, *x_ends, y_ends[0]):
        axes.plot([x for x, _ in corners], [y for _, y in corners], color=LIGHT["ink"], linewidth=1.3,
                  dashes=(5, 4))  # fmt: skip
        drawing.name(name, corners[-1], 8)
    if measured.bandwidth:
        ridge = max(known, default=y_ends[1]) / measured.bandwidth
        x = (x_ends[0] * min(ridge, x_ends[1]) ** 2) ** (1 / 3)
        if x > x_ends[0]:  # else the slope lies left of every point
            drawing.name(f"copy: {human(measured.bandwidth, 'B/s')}", (x, x * measured.bandwidth), -8, 4)
    for i, (variant, points) in enumerate(series.items()):
        drawing.points([(p.intensity, p.rate) for p in points], [p.tip for p in points], i)
        axes.lines[-1].set_label(spec.name("optimization", variant))
    fastest = {point.value.workload: point for point in sorted(every, key=lambda point: point.rate)}
    names = [
        (spec.name("workload", workload), (point.intensity, point.rate))
        for workload, point in sorted(fastest.items(), key=lambda one: -one[1].rate)
    ]
    name_points(drawing, names, [(point.intensity, point.rate) for point in every], TINY)
    x_title(axes, "Arithmetic intensity, FLOP per byte")
    y_title(drawing, f"FLOP/s reached ({origins(p.value.origin for p in every)})")
    drawing.canvas.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=SMALL, columnspacing=1.4)
    return drawing.finish(block.title, block.text, alt_text(block.title, series))


def _points(block: ReportBlock, spec: Spec, index: ResultIndex, variant: str) -> Iterator[RooflinePoint]:
    fields = block.fields
    for workload in index.names("workload", fields["where"], fields["metric"]):
        time = index.get(workload, variant, fields["metric"], fields["method"])
        moved, flops = (index.first(workload, variant, fields[name]) for name in ("bytes", "flops"))
        if time and moved and flops and min(time.median, moved.median, flops.median) > 0:
            rate = flops.median / time.median
            name = f"{spec.name('optimization', variant)}, {spec.name('workload', workload)}"
            tip = Tip(f"{name}: {human(rate, 'FLOP/s')}", time.cell)
            yield RooflinePoint(flops.median / moved.median, rate, tip, time)


def _roofs(
    measured: Rates, x_low: float, x_high: float, y_low: float
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield for each precision whose rate is known its roof: up the bandwidth to the rate, then level."""
    for name, rate in measured.compute.items():
        if rate and measured.bandwidth:
            begin = max(x_low, y_low / measured.bandwidth)
            ridge = min(max(rate / measured.bandwidth, begin), x_high)
            slope = [(x, min(x * measured.bandwidth, rate)) for x in (begin, ridge)]
            yield (
                f"{name}: {human(rate, 'FLOP/s')}",
                [*slope, (x_high, min(x_high * measured.bandwidth, rate))],
            )
