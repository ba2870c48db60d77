"""Draw what the report of this suite alone shows: utilization over training compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.records import Origin
from harness.report.axes import LIGHT, MOST_LINES, SERIES, SMALL, Tip, linear, logarithmic, x_title
from harness.report.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.results import ResultIndex, Value
from harness.report.spec import OwnFigureBlock, Spec
from harness.units import ORIGIN_MARKS, human, number

COMPUTE, UTILIZATION = "training_compute", "utilization"
PUBLISHED_STEPS = {"workload": ["gpt3_*", "llama_*", "meta_*"], "optimization": "baseline"}
DOTS = {"measured": "published", "calculated": "calculated"}
"""What the dots are, to the method of their utilization."""

CLAIMED = {"claimed: falls": 2.0e28, "claimed: ends": 2.0e31}
DOT_SERIES = 5
"""The series whose colour points have."""

ROOM = 1.35
"""Factor of the x axis beyond its outer points."""

Dots = Mapping[str, list[tuple[Value, Value]]]


class Curve(NamedTuple):
    """The places of one line from left to right, and the record that has them."""

    places: tuple[tuple[float, float], ...]
    cell: str
    unit: str
    origin: str


def by_compute(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Draw the best utilization over training compute, a line per variant; None where none has two places."""
    every = {
        spec.name("optimization", variant): curve
        for variant in index.names("optimization", block.where)
        if (curve := _curve(block, index, variant, "curve")) and len(curve.places) > 1
    }
    if not every:
        return None
    lines = dict(list(every.items())[:MOST_LINES])
    dots = {title: found for title, method in DOTS.items() if (found := _dots(index, method))}
    ends = [_curve(block, index, "baseline", method) for method in ("5 %", "95 %")]
    band = [one for one in ends if one] if all(ends) else []
    drawing = Drawing(block.id, 430)
    axes = drawing.axes
    places = [place for line in (*lines.values(), *band) for place in line.places]
    places += [(x.median, y.median) for found in dots.values() for x, y in found]
    xs = [x for x, _ in places]
    logarithmic(axes, "x", min(xs) / ROOM, max(xs) * ROOM, "1")
    linear(axes, "y", 0, 1.08 * max(y for _, y in places), "1")
    if band:
        _shade(drawing, *band)
    for i, (name, curve) in enumerate(lines.items()):
        _draw(drawing, i, name, curve)
    for title, found in dots.items():
        _point(drawing, spec, title, found)
    for label, at in CLAIMED.items():
        axes.axvline(at, color=LIGHT["ink"], linewidth=1.1, dashes=(5, 4))
        drawing.name(label, (at, axes.get_ylim()[1]), 6, -10)
    x_title(axes, "Training compute in three months, FLOP")
    marks = [ORIGIN_MARKS[curve.origin] for curve in lines.values()]
    marks += [ORIGIN_MARKS[y.origin] for found in dots.values() for _, y in found]
    y_title(drawing, f"Share of peak ({origins(marks)})")
    _label(drawing, lines, dots, bool(band))
    text = block.text + not_drawn(list(every)[MOST_LINES:])
    return drawing.finish(block.title, text, alt_text(block.title, [*lines, *dots]))


def _curve(block: OwnFigureBlock, index: ResultIndex, variant: str, method: str) -> Curve | None:
    """Return the samples of both metrics in the first cell of the variant that has as many of each."""
    for workload in index.names("workload", block.where):
        for record in index.right(workload, variant)[:1]:
            found = {one.metric: one for one in record.measurements if one.method == method}
            x, y = found.get(COMPUTE), found.get(UTILIZATION)
            if x and y and len(x.samples) == len(y.samples):
                places = tuple(sorted(zip(x.samples, y.samples, strict=True)))
                return Curve(places, record.cell.id, y.unit, y.origin)
    return None


def _dots(index: ResultIndex, method: str) -> list[tuple[Value, Value]]:
    """Return both values of each published step that has them."""
    steps = index.select(UTILIZATION, {**PUBLISHED_STEPS, "method": method})
    found = ((index.get(y.workload, y.optimization, COMPUTE, "published"), y) for y in steps)
    return [(x, y) for x, y in found if x]


def _is_ring(dots: list[tuple[Value, Value]]) -> bool:
    """Return whether points are rings: others published or measured the value; else it was calculated."""
    return dots[0][1].origin != Origin.CALCULATED


def _point(drawing: Drawing, spec: Spec, title: str, dots: list[tuple[Value, Value]]) -> None:
    tips = [
        Tip(f"{spec.name('workload', y.workload)}, {title}: {human(y.median, y.unit)}", y.cell)
        for _, y in dots
    ]
    ring = _is_ring(dots)
    places = [(x.median, y.median) for x, y in dots]
    drawing.points(places, tips, DOT_SERIES, hollow=ring, size=9 if ring else 4, marker="o")


def _draw(drawing: Drawing, i: int, name: str, curve: Curve) -> None:
    xs, ys = zip(*curve.places, strict=True)
    drawing.line(xs, ys, i, 2.2 if i == 0 else 1.5)
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


def _label(drawing: Drawing, lines: Mapping[str, Curve], dots: Dots, band: bool) -> None:
    """Write what each line, the band and the points are at the right edge."""
    most = drawing.axes.get_ylim()[1]
    labels = [
        (curve.places[-1][1], name, SERIES[i % len(SERIES)]) for i, (name, curve) in enumerate(lines.items())
    ]
    if band:
        labels.append((most * 0.9, "shaded: 90 % of draws", LIGHT["soft"]))
    for i, (title, found) in enumerate(dots.items()):
        sign = "○" if _is_ring(found) else "•"
        labels.append((most * (0.75 - 0.1 * i), f"{sign} {title}", SERIES[DOT_SERIES]))
    right_labels(drawing, labels, SMALL + 4)
