"""Figures -> a picture: what a metric did from step to step, one line a variant."""

from __future__ import annotations

import math
from statistics import fmean

from harness.report.figures import alt, origins
from harness.report.frame import Frame
from harness.report.spec import Block, Spec
from harness.report.svg import SERIES, WIDTH, Canvas, Picture, linear, round_ticks
from harness.units import number


def course(block: Block, spec: Spec, frame: Frame) -> Picture | None:
    """The metric's samples in their order, the mean over repeats; the height is from the lowest on."""
    series = _series(block, spec, frame)
    if not series:
        return None
    figures = frame.select(block.fields["metric"], block.fields["where"])
    canvas = Canvas()
    legend = canvas.legend(list(series))
    canvas.text(4, legend + 2, f"{block.fields['up']} {origins(figures)}".strip(), role="soft")
    top, bottom, left, right = legend + 20, legend + 330, 66.0, WIDTH - 14
    heights = [value for line in series.values() for value in line]
    low, high = min(heights), max(heights)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    up = linear(low - margin, high + margin, bottom, top)
    longest = max(len(line) for line in series.values())
    across = linear(1, max(longest, 2), left, right)
    for tick in _ticks(low, high):
        canvas.line(left, up(tick), right, up(tick))
        canvas.text(left - 8, up(tick), number(tick, 4), "end", "soft")
    for tick in round_ticks(longest):
        if tick >= 1:
            canvas.text(across(tick), bottom + 14, number(tick), "middle", "soft")
    for i, (name, line) in enumerate(series.items()):
        places = [(across(step), up(value)) for step, value in enumerate(line, 1)]
        canvas.path(places, f"s{i % SERIES}")
        canvas.dot(*places[-1], 3.5, f"s{i % SERIES}", f"{name}, {len(line)}: {number(line[-1])}")
    canvas.text((left + right) / 2, bottom + 34, block.fields["across"], "middle", "soft")
    return canvas.picture(block.id, block.title, block.text, alt(block, series), bottom + 48)


def _ticks(low: float, high: float) -> list[float]:
    """Multiples of a round number from `low` to `high`."""
    if low == high:
        return [low]
    step = round_ticks(high - low)[1]
    return [count * step for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _series(block: Block, spec: Spec, frame: Frame) -> dict[str, list[float]]:
    """Of each variant that has it, the mean over repeats at each step that all of them took."""
    where, metric = block.fields["where"], block.fields["metric"]
    series = {}
    for workload in frame.values("workload", where, metric):
        for variant in frame.values("optimization", where, metric):
            found = [
                one.samples
                for record in frame.cells.get((workload, variant), ())
                for one in record.measurements
                if one.metric == metric
            ]
            if found:
                name = spec.name("optimization", variant)
                series[name] = [fmean(step) for step in zip(*found, strict=False)]
    return series
