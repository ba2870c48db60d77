"""Make what the report of this suite alone shows: what each factor of a full factorial is worth."""

from __future__ import annotations

import math

from harness.claims.judge import Factorial, factorial_of, variant_name
from harness.claims.values import NoPairsError, compare
from harness.report.axes import LIGHT, SERIES, Tip, log_ticks, set_ticks, x_title
from harness.report.figure import Drawing, Figure, alt_text, origins
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, OwnTableBlock, Spec
from harness.report.tables import DASH, Table, TableCell, word
from harness.statistics import Ratio
from harness.units import marked, times

FACTORS = {
    "bf16": "Mixed precision",
    "compile": "torch.compile",
    "flash": "Flash attention",
    "fused": "Fused operations",
    "ahead": "Loading ahead",
    "batch": "Larger micro-batch",
}
"""Each factor with its title, in the order in which variants name them."""

OVER = {"baseline": "fp32", "tf32": "TF32", "factorial.bf16": "bf16"}
"""Baselines that all techniques together are compared with."""

COMBINATIONS, BASELINE, METHOD = "factorial", "baseline", "warm"
MEASURED = "measured"

LEGEND = (
    "▲ above 1, ▼ below 1: its 95 % interval, in brackets, excludes 1. Gains are in tokens/s, of equal work."
)


def factorial_on(index: ResultIndex, workload: str) -> Factorial | None:
    """Return the times of all combinations on a workload; None where they are complete for no two factors."""
    records = [one for one in index.records if one.cell.workload == workload]
    return factorial_of(records, list(FACTORS), COMBINATIONS, BASELINE, "time", METHOD)


def gain_text(ratio: Ratio) -> str:
    """Return `1.41× (1.38 … 1.44) ᵐ`."""
    low, high = (times(end).removesuffix("×") for end in (ratio.low, ratio.high))
    ends = f" ({low} … {high})" if ratio.low > 0 and ratio.high < float("inf") else ""
    return marked(f"{times(ratio.value)}{ends}", MEASURED)


def gain_cell(ratio: Ratio, cell: str = "") -> TableCell:
    """Return a gain with the sign of whether its interval excludes 1."""
    sign, look = ("▲", "good") if ratio.low > 1 else ("▼", "bad") if ratio.high < 1 else ("=", "muted")
    return TableCell(f"{sign} {gain_text(ratio)}", cell, look)


def values(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per factor: what it gains alone, added last, and in the mean over all orders."""
    rows: list[tuple[TableCell, ...]] = []
    for workload in index.names("workload", block.where):
        whole = factorial_on(index, workload)
        if whole is None:
            continue
        ordered = sorted(whole.factors, key=lambda one: whole.shapley(one).value, reverse=True)
        for factor in ordered:
            name = word(FACTORS[factor])
            cells = [gain_cell(one(factor)) for one in (whole.shapley, whole.alone, whole.added_last)]
            rows.append((name, *cells))
        lacking = ", ".join(FACTORS[one] for one in whole.left_out)
        left_out = (
            f"not all combinations with {lacking} have a right result that was timed here: they are left out"
        )
        notes = [left_out] if lacking else []
        rows.append((word("all, or the product", *notes), *_totals(whole)))
    header = ("Technique", "Mean over all orders", "Alone", "Added last")
    text = f"{block.text} {LEGEND}".strip()
    return Table(block.id, block.title, text, header, tuple(rows))


def _totals(whole: Factorial) -> tuple[TableCell, ...]:
    """Return what all gain together, to which Shapley values multiply, and the other columns' products."""
    last = {whole.every: float(len(whole.factors))}
    for factor in whole.factors:
        last[whole.every - {factor}] = last.get(whole.every - {factor}, 0.0) - 1.0
    return gain_cell(whole.whole()), gain_cell(whole.product_of_singles()), gain_cell(whole.gain(last))


def whole(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per workload: all over each named baseline, the product of singles, an order."""
    rows = []
    for workload in index.names("workload", block.where):
        whole = factorial_on(index, workload)
        if whole is None:
            continue
        over = [_over(index, workload, whole, one) for one in OVER]
        order = " → ".join(f"{FACTORS[one.factor]} {times(one.gain.value)}" for one in whole.greedy())
        cells = (gain_cell(whole.product_of_singles()), gain_cell(whole.whole_over_product()))
        place = word(spec.name("workload", workload))
        rows.append((place, *over, *cells, TableCell(marked(order, MEASURED))))
    header = (
        "Step",
        *(f"All over {title}" for title in OVER.values()),
        "Product of single gains",
        "All over that product",
        "Greedy order",
    )
    return Table(block.id, block.title, f"{block.text} {LEGEND}".strip(), header, tuple(rows))


def _over(index: ResultIndex, workload: str, whole: Factorial, baseline: str) -> TableCell:
    """Return what the variant with all factors gains over a named baseline; a dash where it was not timed."""
    best = variant_name(COMBINATIONS, list(FACTORS), whole.every, BASELINE)
    ours, base = (index.cells.get((workload, one), ()) for one in (best, baseline))
    try:
        return gain_cell(compare(base, ours, "time", METHOD), ours[0].cell.id if ours else "")
    except NoPairsError:
        return DASH


def pairs(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return for each pair of factors what both gain together over the product of what each gains alone."""
    rows: list[tuple[TableCell, ...]] = []
    header: tuple[str, ...] = ("Technique",)
    for workload in index.names("workload", block.where)[:1]:
        whole = factorial_on(index, workload)
        if whole is None:
            continue
        header = ("Technique", *(FACTORS[one] for one in whole.factors[1:]))
        for at, one in enumerate(whole.factors[:-1]):
            cells = [
                gain_cell(whole.pair(one, other)) if place > at else TableCell("", look="muted")
                for place, other in enumerate(whole.factors)
                if place
            ]
            rows.append((word(FACTORS[one]), *cells))
    return Table(block.id, block.title, f"{block.text} {LEGEND}".strip(), header, tuple(rows))


STEP_ROW = 44
BAR = 0.42
GAIN, LOSS, TOTAL = 0, 1, 2  # series of a bar


def waterfall(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None where no factorial is complete. Whiskers are intervals of each bar's gain."""
    workloads = index.names("workload", block.where)
    whole = factorial_on(index, workloads[0]) if workloads else None
    if whole is None:
        return None
    ordered = sorted(whole.factors, key=lambda one: whole.shapley(one).value, reverse=True)
    drawing = Drawing(block.id, 96 + STEP_ROW * (len(ordered) + 1))
    ends, at = [1.0], 1.0
    for row, factor in enumerate(ordered):
        gain = whole.shapley(factor)
        ends += _bar(drawing, row, at, gain, _tip(whole, factor), LOSS if gain.value < 1 else GAIN)
        at *= gain.value
    title = "All together"
    ends += _bar(drawing, len(ordered), 1.0, whole.whole(), f"{title}: {gain_text(whole.whole())}", TOTAL)
    _axes(drawing, [FACTORS[one] for one in ordered] + [title], ends)
    product = gain_text(whole.product_of_singles())
    what = f"Gain in tokens/s over the baseline ({origins([MEASURED])}; product of single gains: {product})"
    x_title(drawing.axes, what)
    names = [_tip(whole, one) for one in ordered]
    return drawing.finish(block.title, block.text, alt_text(block.title, names))


def _tip(whole: Factorial, factor: str) -> str:
    """Return what a bar says: the mean over all orders, alone, added last."""
    parts = (
        f"mean over all orders {gain_text(whole.shapley(factor))}",
        f"alone {gain_text(whole.alone(factor))}",
        f"added last {gain_text(whole.added_last(factor))}",
    )
    return f"{FACTORS[factor]}: {', '.join(parts)}"


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
    drawing.rows(names)
