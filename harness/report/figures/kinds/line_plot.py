"""Draw one line per variant over sizes, per workload over links, or of chosen cells, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.data.speedup import compared
from harness.report.figures.axes import fitted, named_ticks, tick_text, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.figures.svg import DASHES, LIGHT, MOST_LINES, SERIES, WIDTH, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import divided
from harness.units import human, number, times


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
