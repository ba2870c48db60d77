"""Draw the roofline: FLOP/s reached over FLOPs per byte, under the roofs that this host reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.figures.axes import logarithmic, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins, y_title
from harness.report.figures.point_labels import name_points
from harness.report.figures.svg import LIGHT, SMALL, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.roofline import Rates, rates
from harness.units import human


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
