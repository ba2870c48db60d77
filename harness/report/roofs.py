"""The roofline, drawn: what each variant reached against what its operations a byte allow here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.report.figures import alt, origins
from harness.report.frame import Figure, Frame
from harness.report.roofline import Rates, rates
from harness.report.spec import Block, Spec
from harness.report.svg import SERIES, WIDTH, Canvas, Picture, log_ticks, logarithmic, width_of
from harness.units import human, number


class Point(NamedTuple):
    """One workload by one variant: FLOPs a byte, and FLOP/s reached."""

    intensity: float
    rate: float
    tip: str
    figure: Figure


def roofs(block: Block, spec: Spec, frame: Frame) -> Picture | None:
    """FLOP/s over FLOPs a byte, both axes logarithmic; None where no time was recorded."""
    variants = frame.values("optimization", block.fields["where"], block.fields["metric"])
    series = {variant: list(_points(block, spec, frame, variant)) for variant in variants}
    series = {variant: points for variant, points in series.items() if points}
    every = [point for points in series.values() for point in points]
    if not every:
        return None
    measured = rates(block.fields, frame)
    canvas = Canvas()
    legend = canvas.legend([spec.name("optimization", variant) for variant in series])
    canvas.text(4, legend + 2, f"GFLOP/s {origins(p.figure for p in every)}", role="soft")
    top, bottom, left, right = legend + 20, legend + 350, 66.0, WIDTH - 60
    known = [rate for rate in measured.compute.values() if rate]
    x_low, x_high = min(p.intensity for p in every) / 1.5, max(p.intensity for p in every) * 1.5
    y_low, y_high = min(p.rate for p in every) / 1.5, max([*(p.rate for p in every), *known]) * 1.5
    across = logarithmic(x_low, x_high, left, right)
    up = logarithmic(y_low, y_high, bottom, top)
    for tick in log_ticks(y_low / 1e9, y_high / 1e9):
        canvas.line(left, up(tick * 1e9), right, up(tick * 1e9))
        canvas.text(left - 8, up(tick * 1e9), number(tick), "end", "soft")
    for tick in log_ticks(x_low, x_high):
        canvas.line(across(tick), top, across(tick), bottom)
        canvas.text(across(tick), bottom + 14, number(tick), "middle", "soft")
    for name, corners in _roof_lines(measured, x_low, x_high, y_low):
        _roof(canvas, name, [(across(x), up(y)) for x, y in corners])
    for i, points in enumerate(series.values()):
        for p in points:
            canvas.dot(across(p.intensity), up(p.rate), 4.5, f"s{i % SERIES}", p.tip, 0.8)
    canvas.text((left + right) / 2, bottom + 34, "Operations a byte that must move", "middle", "soft")
    return canvas.picture(block.id, block.title, block.text, alt(block, series), bottom + 48)


def _roof(canvas: Canvas, name: str, places: Sequence[tuple[float, float]]) -> None:
    for (x1, y1), (x2, y2) in pairwise(places):
        canvas.line(x1, y1, x2, y2, "ink", 1.2, "5 4")
    x, y = places[-1]
    canvas.text(min(x + 6, WIDTH - width_of(name, 12)), y, name, size=12)


def _points(block: Block, spec: Spec, frame: Frame, variant: str) -> Iterator[Point]:
    fields = block.fields
    for workload in frame.values("workload", fields["where"], fields["metric"]):
        time = frame.get(workload, variant, fields["metric"], fields["method"])
        moved, flops = (frame.first(workload, variant, fields[name]) for name in ("bytes", "flops"))
        if time and moved and flops and min(time.value, moved.value, flops.value) > 0:
            rate = flops.value / time.value
            name = f"{spec.name('optimization', variant)}, {spec.name('workload', workload)}"
            yield Point(flops.value / moved.value, rate, f"{name}: {human(rate, 'FLOP/s')}", time)


def _roof_lines(
    measured: Rates, x_low: float, x_high: float, y_low: float
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """For each precision whose rate is known: up the bandwidth to its rate, then level."""
    for name, rate in measured.compute.items():
        if rate and measured.bandwidth:
            begin = max(x_low, y_low / measured.bandwidth)
            ridge = min(max(rate / measured.bandwidth, begin), x_high)
            slope = [(x, min(x * measured.bandwidth, rate)) for x in (begin, ridge)]
            yield name, [*slope, (x_high, min(x_high * measured.bandwidth, rate))]
