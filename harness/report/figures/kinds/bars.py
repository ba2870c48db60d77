"""Draw bars: of variants, of factors that add up, and efficiencies from the best platform to the worst.

Draw one horizontal bar per variant, stacked by metric, the shortest first.

Draw how the gain of all factors is made up of theirs: each bar begins where the last one ended.

Draw a cascade: each variant's efficiencies from its best platform to its worst, ending where support ends.

Sewall, Pennycook, Jacobsen, Deakin and McIntosh-Smith, Interpreting and Visualizing Performance Portability
Metrics, P3HPC 2020, doi 10.1109/P3HPC51967.2020.00007.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from harness.claims.judge import Factorial
from harness.report.data.result_index import ResultIndex, Value
from harness.report.data.training_metrics import application, performance_portability, time_of
from harness.report.figures.axes import (
    DASHES,
    LIGHT,
    MOST_LINES,
    SERIES,
    SMALL,
    Tip,
    linear,
    log_ticks,
    set_ticks,
    tick_text,
    x_title,
)
from harness.report.figures.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.suite_tables import MEASURED, factorial_on, gain_text
from harness.statistics import Ratio
from harness.units import human, times

ROW = 30


class Bar(NamedTuple):
    """One variant's bar: its parts in the order of the stack, None where one was not recorded."""

    name: str
    parts: tuple[Value | None, ...]

    @property
    def length(self) -> float:
        """Return the sum of the recorded parts."""
        return sum(part.median for part in self.parts if part)

    @property
    def total(self) -> str:
        """Return the sum as text; `+ ?` where a part is missing."""
        unit = next(part.unit for part in self.parts if part)
        text = tick_text(self.length, "1") if unit == "1" and self.length >= 1e4 else human(self.length, unit)
        return text + ("" if all(self.parts) else " + ?")


def bars(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, None with fewer than two bars."""
    stacks: Mapping[str, str] = block.fields["stacks"]
    rows = _bars(block, spec, index)
    if len(rows) < 2 or rows[-1].length <= 0:
        return None
    drawing = Drawing(block.id, 74 + ROW * len(rows) + (28 if len(stacks) > 1 else 0))
    axes = drawing.axes
    for i, (metric, label) in enumerate(stacks.items()):
        _stack(drawing, rows, i, label, metric)
    for y, row in enumerate(rows):
        drawing.name(row.total, (row.length, y), 6)
    values = [part for row in rows for part in row.parts if part]
    linear(axes, "x", 0, rows[-1].length * 1.12, values[0].unit)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], color=LIGHT["ink"])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    name = block.fields["x_title"] or spec.name("metric", next(iter(stacks)))
    x_title(axes, f"{name} ({origins(value.origin for value in values)})")
    if len(stacks) > 1:
        drawing.canvas.legend(loc="outside upper left", ncols=len(stacks), frameon=False, fontsize=SMALL,
                              handlelength=1.1, columnspacing=1.4)  # fmt: skip
    return drawing.finish(block.title, block.text, alt_text(block.title, (row.name for row in rows)))


def _bars(block: ReportBlock, spec: Spec, index: ResultIndex) -> list[Bar]:
    """Return the variants that have any of the metrics, the shortest first."""
    rows = []
    for workload in index.names("workload", block.fields["where"]):
        for variant in index.names("optimization", block.fields["where"]):
            parts = tuple(
                index.get(workload, variant, metric, block.fields["method"])
                for metric in block.fields["stacks"]
            )
            if any(parts):
                rows.append(Bar(spec.name("optimization", variant), parts))
    return sorted(rows, key=lambda row: row.length)


def _stack(drawing: Drawing, rows: list[Bar], i: int, label: str, metric: str) -> None:
    """Draw one metric's part of every bar that has some."""
    drawn = [
        (y, part, sum(one.median for one in row.parts[:i] if one))
        for y, row in enumerate(rows)
        if (part := row.parts[i]) and part.median > 0
    ]
    colour = SERIES[i % len(SERIES)]
    drawing.axes.barh([-9], [0], color=colour, label=label)  # the legend's
    for y, part, left in drawn:
        text = f"{rows[y].name} · {label}: {human(part.median, part.unit)}"
        (bar,) = drawing.axes.barh([y], [part.median], left=[left], height=0.66, color=colour)
        bar.set_gid(drawing.tip([Tip(text, part.cell)], i))


STEP_ROW = 44
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
    drawing = Drawing(block.id, 96 + STEP_ROW * (len(ordered) + 1))
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


def cascade(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None with fewer than two platforms."""
    fields = block.fields
    found = application(index, fields)
    count = max((len(one) for one in found.values()), default=0)
    if count < 2:
        return None
    means = {name: performance_portability(list(one.values())) for name, one in found.items()}
    ordered = sorted(found, key=lambda name: -_area(found[name]))
    hidden = [spec.name("optimization", name) for name in ordered[MOST_LINES:]]
    drawing, ends = Drawing(block.id, 420), []
    for i, name in enumerate(ordered[:MOST_LINES]):
        supported = sorted(((e, place) for place, e in found[name].items() if e > 0), reverse=True)
        label = spec.name("optimization", name)
        heights = [e for e, _ in supported]
        xs = list(range(1, len(heights) + 1))
        style = DASHES[i % len(DASHES)] or (None, None)
        drawing.axes.plot(xs, heights, color=SERIES[i % len(SERIES)], linewidth=1.8, dashes=style)
        tips = []
        for e, place in supported:
            value = time_of(index, place, name, fields)
            cell = value.cell if value is not None else ""
            tips.append(Tip(f"{label}, {spec.name('workload', place)}: {e:.0%} of the best", cell))
        drawing.points(list(zip(xs, heights, strict=True)), tips, i)
        ends.append((heights[-1], f"{label}: PP {means[name]:.2f}", SERIES[i % len(SERIES)]))
    drawing.axes.set_ylim(0, 1.05)
    drawing.axes.set_xlim(0.7, count + 0.3)
    drawing.axes.set_xticks(range(1, count + 1))
    drawing.axes.grid(axis="y")
    x_title(drawing.axes, "Platforms, from each variant's best to its worst")
    y_title(drawing, "Application efficiency (best time / time, measured)")
    right_labels(drawing, ends)
    text = (block.text + not_drawn(hidden)).strip()
    return drawing.finish(
        block.title, text, alt_text(block.title, [spec.name("optimization", n) for n in ordered])
    )


def _area(efficiencies: dict[str, float]) -> float:
    return sum(efficiencies.values())
