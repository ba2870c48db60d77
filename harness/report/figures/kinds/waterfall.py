"""Draw how the gain of all factors is made up of theirs: each bar begins where the last one ended."""

from __future__ import annotations

import math

from harness.claims.factorial import Factorial
from harness.report.data.result_index import ResultIndex
from harness.report.figures.axes import log_ticks, set_ticks, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins
from harness.report.figures.svg import LIGHT, SERIES, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.stack_tables import MEASURED, factorial_on, gain_text
from harness.statistics import Ratio
from harness.units import times

ROW = 44
BAR = 0.42
GAIN, LOSS, TOTAL = 0, 1, 2
"""Series of a bar."""


def waterfall(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None where no factorial is complete. Whiskers are intervals of each bar's gain."""
    workloads = index.names("workload", block.fields["where"])
    whole = factorial_on(block, index, workloads[0]) if workloads else None
    if whole is None:
        return None
    ordered = sorted(whole.factors, key=lambda one: whole.shapley(one).value, reverse=True)
    drawing = Drawing(block.id, 96 + ROW * (len(ordered) + 1))
    ends, at = [1.0], 1.0
    for row, factor in enumerate(ordered):
        gain = whole.shapley(factor)
        ends += _bar(drawing, row, at, gain, _tip(block, whole, factor), LOSS if gain.value < 1 else GAIN)
        at *= gain.value
    title = "All together"
    ends += _bar(drawing, len(ordered), 1.0, whole.whole(), f"{title}: {gain_text(whole.whole())}", TOTAL)
    _axes(drawing, [block.fields["factors"][one] for one in ordered] + [title], ends)
    product = gain_text(whole.product_of_singles())
    what = f"Gain in tokens/s over the baseline ({origins([MEASURED])}; product of single gains: {product})"
    x_title(drawing.axes, what)
    names = [_tip(block, whole, one) for one in ordered]
    return drawing.finish(block.title, block.text, alt_text(block.title, names))


def _tip(block: ReportBlock, whole: Factorial, factor: str) -> str:
    """Return what a bar says: the mean over all orders, alone, added last."""
    parts = (
        f"mean over all orders {gain_text(whole.shapley(factor))}",
        f"alone {gain_text(whole.alone(factor))}",
        f"added last {gain_text(whole.added_last(factor))}",
    )
    return f"{block.fields['factors'][factor]}: {', '.join(parts)}"


def _bar(drawing: Drawing, row: int, start: float, gain: Ratio, text: str, series: int) -> list[float]:
    """Draw one bar from `start`, its interval as a whisker at its end, and its gain; return what it spans."""
    axes, colour = drawing.axes, SERIES[series]
    end = start * gain.value
    axes.barh(row, end - start, height=BAR, left=start, color=colour, linewidth=0, zorder=2)
    if series != TOTAL:
        axes.plot([end, end], [row + BAR / 2, row + 1], color=LIGHT["soft"], linewidth=1, zorder=1)
    spans = [end]
    if gain.low > 0 and math.isfinite(gain.high):
        spans += [start * gain.low, start * gain.high]
        axes.plot(spans[1:], [row, row], color=LIGHT["ink"], linewidth=1.6, zorder=3)
    drawing.points([(end, row)], [Tip(text)], series, size=5)
    drawing.name(times(gain.value), (max([start, *spans]), row), 10)
    return [start, *spans]


def _axes(drawing: Drawing, names: list[str], ends: list[float]) -> None:
    axes = drawing.axes
    low, high = min(ends) / 1.03, max(ends)
    axes.axvline(1, color=LIGHT["ink"], linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.12)
    set_ticks(axes.xaxis, log_ticks(low, high * 1.02), "x")
    axes.grid(axis="x")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, color=LIGHT["ink"])
    axes.tick_params(length=0)
