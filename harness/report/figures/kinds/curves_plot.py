"""Draw a metric over another one, both by the samples of a cell: lines, a band, points of other cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.records import Measurement, Origin
from harness.report.data.result_index import ResultIndex, Value
from harness.report.figures.axes import linear, logarithmic, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.figures.svg import DASHES, LIGHT, MOST_LINES, SERIES, SMALL, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.units import ORIGIN_MARKS, human, number

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
        _draw(drawing, i, name, curve)
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


def _draw(drawing: Drawing, i: int, name: str, curve: Curve) -> None:
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
