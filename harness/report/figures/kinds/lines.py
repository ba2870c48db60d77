"""Draw lines: over sizes, over another metric, and from step to step.

Draw one line per variant over sizes, per workload over links, or of chosen cells, with intervals.

Draw a metric over another one, both by the samples of a cell: lines, a band, points of other cells.

Draw what a metric did from step to step, one line per variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from harness.records import Measurement, Origin
from harness.report.data.result_index import ResultIndex, Value
from harness.report.data.speedup import compared
from harness.report.figures.axes import (
    DASHES,
    LIGHT,
    MOST_LINES,
    SERIES,
    SMALL,
    WIDTH,
    Tip,
    fitted,
    linear,
    logarithmic,
    named_ticks,
    tick_text,
    x_title,
)
from harness.report.figures.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import divided
from harness.units import ORIGIN_MARKS, human, number, times


class LinePoint(NamedTuple):
    """One point of a line; `low` and `high` are the ends of its interval, the same where it has none."""

    x: float
    y: float
    name: str
    value: Value
    low: float
    high: float


def lines(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, its axes logarithmic where they are long; None where no line has two points."""
    series, covered = _series(block, spec, index)
    if all(len(line) < 2 for line in series.values()):
        return None
    hidden = list(series)[MOST_LINES:]
    series = {name: line for name, line in series.items() if name not in hidden}
    references: Mapping[str, float] = block.fields["references"]
    points = [p for line in series.values() for p in line]
    drawing = Drawing(block.id, 420)
    axes = drawing.axes
    heights = [end for p in points for end in (p.low, p.high)] + [float(one) for one in references.values()]
    unit = "x" if block.fields["y"]["against"] else points[0].value.unit
    room = min(1.15, (max(heights) / min(heights)) ** 0.12 * 1.002)
    fitted(axes, "y", min(heights) / room, max(heights) * room, unit)
    first, last = min(p.x for p in points), max(p.x for p in points)
    margin = max(last / first, 1.5) ** 0.035
    dodge = max(last / first, 1.5) ** 0.006 if any(p.low != p.high for p in points) else 1.0
    fitted(axes, "x", first / margin, last * margin, "1")
    named_ticks(axes, {p.x: p.name for p in points}, WIDTH * 0.66)
    for label in references:
        axes.axhline(references[label], color=LIGHT["ink"], linewidth=1.1, dashes=(5, 4))
    for i, (name, line) in enumerate(series.items()):
        _draw(drawing, i, name, line, unit, dodge ** (i - (len(series) - 1) / 2))
        if mark := _mark(block, index, line):
            tip = Tip(f"{name}: {mark.name}", mark.value.cell)
            drawing.points([(mark.x, mark.y)], [tip], i, hollow=True, size=11)
    x_title(axes, block.fields["x"]["title"])
    y_title(drawing, f"{block.fields['y']['title']} ({origins(p.value.origin for p in points)})")
    ends = [(line[-1].y, name, SERIES[i % len(SERIES)]) for i, (name, line) in enumerate(series.items())]
    right_labels(drawing, [*ends, *((float(at), label, LIGHT["ink"]) for label, at in references.items())])
    left_out = f" Not drawn, as another point is at the same place: {', '.join(covered)}." if covered else ""
    left_out += not_drawn(hidden)
    return drawing.finish(block.title, (block.text + left_out).strip(), alt_text(block.title, series))


def _draw(drawing: Drawing, i: int, name: str, line: Sequence[LinePoint], unit: str, aside: float) -> None:
    """Draw one line, intervals as whiskers, moved `aside` so that no two whiskers coincide."""
    colour = SERIES[i % len(SERIES)]
    xs, ys = [p.x * aside for p in line], [p.y for p in line]
    drawing.axes.plot(xs, ys, color=colour, linewidth=1.8, dashes=DASHES[i % len(DASHES)] or (None, None))
    tips = []
    for p in line:
        shown = times(p.y) if unit == "x" else number(p.y) if unit == "1" else human(p.y, unit)
        if p.low != p.high:
            ends = [p.x * aside] * 2, [p.low, p.high]
            drawing.axes.plot(*ends, color=colour, linewidth=2.2, solid_capstyle="butt")
            shown += f" ({number(p.low)} … {number(p.high)})"
        tips.append(Tip(f"{name}, {p.name}: {shown}", p.value.cell))
    drawing.points([(p.x * aside, p.y) for p in line], tips, i)


def _series(
    block: ReportBlock, spec: Spec, index: ResultIndex
) -> tuple[dict[str, list[LinePoint]], list[str]]:
    """Return for each line its points from left to right, and the names of those at the x of another."""
    series, covered = {}, dict[str, None]()
    for title, along, places in _lines_of(block, spec, index):
        named = [(spec.name(along, place[along]).partition(" (")[0], place) for place in places]
        candidates = [point(block, index, name, **place) for name, place in named]
        points: dict[float, LinePoint] = {}
        for p in candidates:
            if p is not None and points.setdefault(p.x, p) is not p:
                covered[p.name] = None
        if points:
            series[title] = [points[x] for x in sorted(points)]
    return series, list(covered)


def _lines_of(
    block: ReportBlock, spec: Spec, index: ResultIndex
) -> Iterator[tuple[str, str, list[dict[str, str]]]]:
    """Yield the title of each line, the key whose names its points have, and the cells of its points."""
    for one in block.fields["series"]:
        where = {**block.fields["where"], **one["where"]}
        workloads, variants = (index.names(key, where) for key in ("workload", "optimization"))
        places = [{"workload": w, "optimization": v} for w in workloads for v in variants]
        yield one["title"], "workload", places
    if not block.fields["series"]:
        where, key = block.fields["where"], block.fields["line"]
        along = "workload" if key == "optimization" else "optimization"
        for one in index.names(key, where):
            places = [{key: one, along: other} for other in index.names(along, where)]
            yield spec.name(key, one), along, places


def point(
    block: ReportBlock, index: ResultIndex, name: str, workload: str, optimization: str
) -> LinePoint | None:
    """Return the point of a cell on the axes of the block; None where it lacks one of them."""
    x_axis, y_axis = block.fields["x"], block.fields["y"]
    if x_axis["field"]:
        x = index.field(workload, x_axis["field"])
        name = tick_text(x, "B" if x_axis["field"].endswith("_B") else "1") if x else ""
    else:
        across = _value(index, workload, optimization, x_axis)
        x = across.median if across else None
        if across and x_axis["ticks"] == "values":
            name = tick_text(across.median, across.unit)
    y = _value(index, workload, optimization, y_axis)
    if x is None or y is None:
        return None
    if not y_axis["against"]:
        return LinePoint(x, y.median, name, y, y.median, y.median)
    comparison = compared(index, workload, optimization, {**y_axis, "baseline": y_axis["against"]})
    if comparison is None or optimization == y_axis["against"]:
        return None
    return LinePoint(x, comparison.speed_up.value, name, y, comparison.speed_up.low, comparison.speed_up.high)


def _value(index: ResultIndex, workload: str, variant: str, axis: Mapping[str, Any]) -> Value | None:
    value = index.get(workload, variant, axis["metric"], axis["method"])
    if value is not None and axis["per"]:
        value = divided(value, index, axis["per"])
    return value if value and value.median > 0 else None


def _mark(block: ReportBlock, index: ResultIndex, line: Sequence[LinePoint]) -> LinePoint | None:
    """Return where a line's ring is: at the mark of its first cell that has one; None beyond its ends."""
    if not block.fields["mark"]:
        return None
    metric, method, title = (block.fields["mark"][name] for name in ("metric", "method", "title"))
    values = (index.get(p.value.workload, p.value.optimization, metric, method) for p in line)
    mark = next((value for value in values if value), None)
    for left, right in pairwise(line):
        if mark and left.x <= mark.median <= right.x and left.x < right.x:
            share = math.log(mark.median / left.x) / math.log(right.x / left.x)
            y = left.y * (right.y / left.y) ** share
            return LinePoint(mark.median, y, f"{human(mark.median, mark.unit)} {title}".rstrip(), mark, y, y)
    return None


DOTS = 5
"""The series whose colour points have."""

ROOM = 1.35
"""Factor of the x axis beyond its outer points."""


class Curve(NamedTuple):
    """The places of one line from left to right, and the record that has them."""

    places: tuple[tuple[float, float], ...]
    cell: str
    unit: str
    origin: str


def curves(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None where no variant has two places."""
    every = {
        spec.name("optimization", variant): curve
        for variant in index.names("optimization", block.fields["where"])
        if (curve := _curve(block, index, variant, block.fields["method"])) and len(curve.places) > 1
    }
    if not every:
        return None
    lines = dict(list(every.items())[:MOST_LINES])
    dots = {one["title"]: list(_dots(block, index, one)) for one in block.fields["dots"]}
    dots = {title: found for title, found in dots.items() if found}
    band = _band(block, index)
    drawing = Drawing(block.id, 430)
    _axes(drawing, block, [*lines.values(), *(band or ())], [p for found in dots.values() for p in found])
    if band:
        _shade(drawing, *band)
    for i, (name, curve) in enumerate(lines.items()):
        _draw_curves(drawing, i, name, curve)
    for title, found in dots.items():
        _point(drawing, spec, title, found)
    for label, at in block.fields["references"].items():
        drawing.axes.axvline(float(at), color=LIGHT["ink"], linewidth=1.1, dashes=(5, 4))
        drawing.name(label, (float(at), drawing.axes.get_ylim()[1]), 6, -10)
    x_title(drawing.axes, block.fields["x_title"])
    marks = [ORIGIN_MARKS[curve.origin] for curve in lines.values()]
    marks += [ORIGIN_MARKS[y.origin] for found in dots.values() for _, y in found]
    y_title(drawing, f"{block.fields['y_title']} ({origins(marks)})")
    _labels(drawing, block, lines, dots, band)
    text = block.text + not_drawn(list(every)[MOST_LINES:])
    return drawing.finish(block.title, text, alt_text(block.title, [*lines, *dots]))


def _point(drawing: Drawing, spec: Spec, title: str, found: list[tuple[Value, Value]]) -> None:
    """Draw points: a ring where others published or measured the value, a dot where it was calculated."""
    tips = [
        Tip(f"{spec.name('workload', y.workload)}, {title}: {human(y.median, y.unit)}", y.cell)
        for _, y in found
    ]
    ring = found[0][1].origin != Origin.CALCULATED
    places = [(x.median, y.median) for x, y in found]
    drawing.points(places, tips, DOTS, hollow=ring, size=9 if ring else 4, marker="o")


def _axes(
    drawing: Drawing, block: ReportBlock, lines: list[Curve], points: list[tuple[Value, Value]]
) -> None:
    xs = [x for line in lines for x, _ in line.places] + [x.median for x, _ in points]
    ys = [y for line in lines for _, y in line.places] + [y.median for _, y in points]
    logarithmic(drawing.axes, "x", min(xs) / ROOM, max(xs) * ROOM, "1")
    linear(drawing.axes, "y", 0, 1.08 * max(ys), "1")


def _draw_curves(drawing: Drawing, i: int, name: str, curve: Curve) -> None:
    xs, ys = zip(*curve.places, strict=True)
    drawing.axes.plot(xs, ys, color=SERIES[i % len(SERIES)], linewidth=2.2 if i == 0 else 1.5,
                      dashes=DASHES[i % len(DASHES)] or (None, None))  # fmt: skip
    tips = [Tip(f"{name}, {number(x)}: {human(y, curve.unit)}", curve.cell) for x, y in curve.places]
    drawing.points(curve.places, tips, i, size=3.5)


def _shade(drawing: Drawing, low: Curve, high: Curve) -> None:
    """Shade what lies between two curves, to the end of the lower one and on to the axis where that ends."""
    upper = dict(high.places)
    lower = dict.fromkeys(upper, 0.0) | dict(low.places)
    xs = sorted(upper)
    drawing.axes.fill_between(
        xs, [lower[x] for x in xs], [upper[x] for x in xs], color=SERIES[0], alpha=0.16, linewidth=0, zorder=1
    )


def _labels(
    drawing: Drawing,
    block: ReportBlock,
    lines: Mapping[str, Curve],
    dots: Mapping[str, list[tuple[Value, Value]]],
    band: tuple[Curve, Curve] | None,
) -> None:
    """Write what each line, the band and the points are at the right edge."""
    most = drawing.axes.get_ylim()[1]
    labels = [
        (_crossing(curve), name, SERIES[i % len(SERIES)]) for i, (name, curve) in enumerate(lines.items())
    ]
    if band:
        labels.append((most * 0.9, block.fields["band"]["title"], LIGHT["soft"]))
    for i, (title, found) in enumerate(dots.items()):
        sign = "○" if found[0][1].origin != Origin.CALCULATED else "•"
        labels.append((most * (0.75 - 0.1 * i), f"{sign} {title}", SERIES[DOTS]))
    right_labels(drawing, labels, SMALL + 4)


def _crossing(curve: Curve) -> float:
    """Return the height at which a curve ends, for its label."""
    return curve.places[-1][1]


def _curve(block: ReportBlock, index: ResultIndex, variant: str, method: str) -> Curve | None:
    """Return the samples of both metrics in the first cell of the variant that has as many of each."""
    for workload in index.names("workload", block.fields["where"]):
        for record in index.right(workload, variant)[:1]:
            found: dict[str, Measurement] = {
                one.metric: one for one in record.measurements if one.method == method
            }
            x, y = found.get(block.fields["x_metric"]), found.get(block.fields["y_metric"])
            if x and y and len(x.samples) == len(y.samples):
                places = tuple(sorted(zip(x.samples, y.samples, strict=True)))
                return Curve(places, record.cell.id, y.unit, y.origin)
    return None


def _band(block: ReportBlock, index: ResultIndex) -> tuple[Curve, Curve] | None:
    band = block.fields["band"]
    if not band:
        return None
    low, high = (_curve(block, index, band["optimization"], band[end]) for end in ("low", "high"))
    return (low, high) if low and high else None


def _dots(block: ReportBlock, index: ResultIndex, dots: Mapping[str, Any]) -> Iterator[tuple[Value, Value]]:
    """Yield both values of each cell that has them."""
    for y in index.select(block.fields["y_metric"], {**dots["where"], "method": dots["y_method"]}):
        x = index.get(y.workload, y.optimization, block.fields["x_metric"], dots["x_method"])
        if x is not None:
            yield x, y


def line_over_steps(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure: the metric's samples in their order, averaged over repeats; None without samples."""
    every = _series_of(block, spec, index)
    series = dict(list(every.items())[:MOST_LINES])
    if all(len(line) < 2 for line, _ in series.values()):
        return None
    drawing = Drawing(block.id, 400)
    axes = drawing.axes
    heights = [value for line, _ in series.values() for value in line]
    margin = (max(heights) - min(heights)) * 0.06 or abs(max(heights)) * 0.05 or 1.0
    linear(axes, "y", min(heights) - margin, max(heights) + margin, "1")
    longest = max(len(line) for line, _ in series.values())
    linear(axes, "x", 1, max(longest, 2), "1")
    for i, (name, (line, cell)) in enumerate(series.items()):
        axes.plot(range(1, len(line) + 1), line, color=SERIES[i % len(SERIES)], linewidth=1.6,
                  dashes=DASHES[i % len(DASHES)] or (None, None))  # fmt: skip
        tip = Tip(f"{name}, {len(line)}: {number(line[-1])}", cell)
        drawing.points([(len(line), line[-1])], [tip], i)
    x_title(axes, block.fields["x_title"])
    values = index.select(block.fields["metric"], block.fields["where"])
    y_title(drawing, f"{block.fields['y_title']} ({origins(value.origin for value in values)})".strip())
    labels = [(line[-1], name, SERIES[i % len(SERIES)]) for i, (name, (line, _)) in enumerate(series.items())]
    right_labels(drawing, labels)
    text = block.text + not_drawn(list(every)[MOST_LINES:])
    return drawing.finish(block.title, text, alt_text(block.title, series))


def _series_of(block: ReportBlock, spec: Spec, index: ResultIndex) -> dict[str, tuple[list[float], str]]:
    """Return, of each variant that has it, the mean over repeats at each step that all of them took."""
    where, metric = block.fields["where"], block.fields["metric"]
    series = {}
    for workload in index.names("workload", where, metric):
        for variant in index.names("optimization", where, metric):
            runs = [
                (one.samples, record.cell.id)
                for record in index.right(workload, variant)
                for one in record.measurements
                if one.metric == metric
            ]
            if runs:
                steps = [fmean(step) for step in zip(*(samples for samples, _ in runs), strict=False)]
                series[spec.name("optimization", variant)] = (steps, runs[0][1])
    return series
