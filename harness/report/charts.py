"""Draw the figures that more than one suite's report has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.claims.model import Claim
from harness.report.axes import (
    LIGHT,
    MOST_LINES,
    SERIES,
    WIDTH,
    Tip,
    fitted,
    linear,
    log_ticks,
    named_ticks,
    set_ticks,
    tick_text,
    x_title,
)
from harness.report.block_tables import errors_by_method
from harness.report.comparison import Comparison, compared, noise_of
from harness.report.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.results import ResultIndex, Value
from harness.report.spec import (
    Axis,
    BarsBlock,
    Block,
    EffectPlotBlock,
    ErrorStripBlock,
    LinesBlock,
    Pairing,
    Spec,
)
from harness.report.tables import divided, percent
from harness.units import human, number, times

BAR_ROW = 30


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


def bars(block: BarsBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure of the variants that have any of the metrics; None with fewer than two bars."""
    rows = [
        Bar(spec.name("optimization", variant), parts)
        for workload in index.names("workload", block.where)
        for variant in index.names("optimization", block.where)
        if any(parts := tuple(index.get(workload, variant, one, block.method) for one in block.stacks))
    ]
    rows.sort(key=lambda row: row.length)
    if len(rows) < 2 or rows[-1].length <= 0:
        return None
    several = len(block.stacks) > 1
    drawing = Drawing(block.id, 74 + BAR_ROW * len(rows) + (28 if several else 0))
    axes = drawing.axes
    for i, label in enumerate(block.stacks.values()):
        _stack(drawing, rows, i, label)
    for y, row in enumerate(rows):
        drawing.name(row.total, (row.length, y), 6)
    values = [part for row in rows for part in row.parts if part]
    linear(axes, "x", 0, rows[-1].length * 1.12, values[0].unit)
    drawing.rows([row.name for row in rows])
    axes.spines["bottom"].set_visible(False)
    name = block.x_title or spec.name("metric", next(iter(block.stacks)))
    x_title(axes, f"{name} ({origins(value.origin for value in values)})")
    if several:
        drawing.legend("outside upper left", len(block.stacks))
    return drawing.finish(block.title, block.text, alt_text(block.title, (row.name for row in rows)))


def _stack(drawing: Drawing, rows: Sequence[Bar], i: int, label: str) -> None:
    colour = SERIES[i % len(SERIES)]
    drawing.axes.barh([-9], [0], color=colour, label=label)  # the legend's
    for y, row in enumerate(rows):
        if (part := row.parts[i]) and part.median > 0:
            left = sum(one.median for one in row.parts[:i] if one)
            (bar,) = drawing.axes.barh([y], [part.median], left=[left], height=0.66, color=colour)
            text = f"{row.name} · {label}: {human(part.median, part.unit)}"
            bar.set_gid(drawing.tip([Tip(text, part.cell)], i))


EFFECT_ROW = 28
MOST_ROWS = 40  # rows that are drawn at most; a table has them all
BETTER, WORSE, NEITHER = 0, 1, 6  # series whose colour a row has

SERIES_OF = {"pays": BETTER, "costs": WORSE}


class EffectRow(NamedTuple):
    """A variant on one workload: its name, its ratio with the interval's ends, and what it does."""

    name: str
    value: float
    low: float
    high: float
    comparison: Comparison
    series: int
    claim: tuple[float, float, str] | None = None  # the claimed range, and who claims it


def effect_plot(
    block: EffectPlotBlock, spec: Spec, index: ResultIndex, claims: Sequence[Claim] = ()
) -> Figure | None:
    """Return the figure, None with fewer than two rows; speed-ups of times, ratios of anything else."""
    rows = _effect_rows(block, spec, index, claims)
    if len(rows) < 2:
        return None
    drawing = Drawing(block.id, 84 + EFFECT_ROW * len(rows))
    axes = drawing.axes
    noise = _noise(block, index)
    if noise:
        axes.axvspan(*noise, color=LIGHT["faint"], alpha=0.6, linewidth=0)
    axes.axvline(1, color=LIGHT["ink"], linewidth=1)
    for y, row in enumerate(rows):
        _draw_effect(drawing, y, row)
    ends = [end for row in rows for end in (row.low, row.high, *(row.claim or ())[:2])]
    low, high = min(1.0, *ends) / 1.05, max(1.0, *ends)
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.14 * 1.02)
    set_ticks(axes.xaxis, log_ticks(low, high * 1.05), "x")
    axes.grid(axis="x")
    drawing.rows([row.name for row in rows])
    x_title(axes, _effect_title(block, spec, rows, noise is not None))
    return drawing.finish(block.title, block.text, alt_text(block.title, (row.name for row in rows)))


def _draw_effect(drawing: Drawing, y: int, row: EffectRow) -> None:
    """Draw a row: its interval, its dot, its number, and below them the bracket of what is claimed."""
    colour, axes = SERIES[row.series], drawing.axes
    text = f"{row.name}: {row.comparison.text} {row.comparison.effect}"
    if row.claim:
        low, high, by = row.claim
        ends = [low, low, high, high], [y + 0.22, y + 0.36, y + 0.36, y + 0.22]
        axes.plot(*ends, color=LIGHT["soft"], linewidth=1.3, solid_joinstyle="miter")
        text += f"; claimed: {times(low)} … {times(high)}, {by}"
    axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=3)
    drawing.points([(row.value, y)], [Tip(text, row.comparison.cell)], row.series)
    drawing.name(row.comparison.size, (row.high, y), 9)


def _effect_title(block: EffectPlotBlock, spec: Spec, rows: Sequence[EffectRow], noise: bool) -> str:
    """Return the title of the x axis, with the origins of what is drawn and what the marks mean."""
    base = spec.name("optimization", block.baseline)
    what = f"Speed-up over {base}"
    if rows[0].comparison.unit != "s":
        what = f"{spec.name('metric', block.metric)}, relative to {base}"
    marks = [origins(row.comparison.origin for row in rows)]
    marks += ["grey band: noise of the baseline"] if noise else []
    marks += ["bracket: claimed"] if any(row.claim for row in rows) else []
    return f"{block.x_title or what} ({'; '.join(marks)})"


def _effect_rows(
    block: EffectPlotBlock, spec: Spec, index: ResultIndex, claims: Sequence[Claim]
) -> list[EffectRow]:
    """Return the variants of each workload, the best first; those of one workload stay together.

    A row names what differs: variant and workload, or the workload alone where all are of one variant.
    """
    workloads = index.names("workload", block.where, block.metric)
    variants = [
        one for one in index.names("optimization", block.where) if one not in (block.baseline, block.noise)
    ]
    rows: list[EffectRow] = []
    for workload in workloads:
        own, timed = [], False
        for variant in variants:
            comparison = compared(index, workload, variant, block.pairing)
            if comparison is None:
                continue
            names = [spec.name("optimization", variant), spec.name("workload", workload)]
            shown = names[:1] if len(workloads) == 1 else names[1:] if len(variants) == 1 else names
            timed = comparison.unit == "s"
            ratio = comparison.speed_up if timed else comparison.ratio
            if math.isfinite(ratio.low) and ratio.low > 0 and math.isfinite(ratio.high):
                claim = _claimed(block, claims, workload, variant, timed)
                series = NEITHER if block.better == "neither" else SERIES_OF.get(comparison.effect, NEITHER)
                own.append(EffectRow(", ".join(shown), *ratio[:3], comparison, series, claim))
        rows += sorted(own, key=lambda row: row.value, reverse=timed or block.better == "higher")
    return rows[:MOST_ROWS]


def _claimed(
    block: EffectPlotBlock, claims: Sequence[Claim], workload: str, variant: str, faster: bool
) -> tuple[float, float, str] | None:
    """Return the range that the first claim with one states for a variant, and who states it."""
    wanted = workload, variant, block.metric, block.method, block.baseline
    for claim in sorted(claims, key=lambda one: one.upper is None):  # those that state a range come first
        low, high = (claim.value, claim.upper) if claim.upper is not None else claim.accepted
        stated = any(
            (one.workload, one.variant, one.metric, one.method, one.relative_to) == wanted
            for one in claim.interpretations
        )
        if stated and claim.relation != "increasing" and 0 < low <= high < math.inf:
            return (low, high, claim.quoted_by) if faster else (1 / high, 1 / low, claim.quoted_by)
    return None


def _noise(block: EffectPlotBlock, index: ResultIndex) -> tuple[float, float] | None:
    """Return the band of the noise where one workload alone is drawn and its baseline was timed twice."""
    workloads = index.names("workload", block.where, block.metric)
    noise = noise_of(index, workloads[0], block.pairing) if len(workloads) == 1 else None
    if noise is None or noise.low <= 0:
        return None
    end = max(noise.high, 1 / noise.low)
    return 1 / end, end


class LinePoint(NamedTuple):
    """One point of a line."""

    x: float
    y: float
    name: str
    value: Value
    low: float  # end of its interval; y where it has none
    high: float


def lines(block: LinesBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, its axes logarithmic where they are long; None where no line has two points."""
    every, covered = _series(block, spec, index)
    if all(len(line) < 2 for line in every.values()):
        return None
    series = dict(list(every.items())[:MOST_LINES])
    points = [p for line in series.values() for p in line]
    drawing = Drawing(block.id, 420)
    axes = drawing.axes
    heights = [end for p in points for end in (p.low, p.high)] + list(map(float, block.references.values()))
    unit = "x" if block.y.over else points[0].value.unit
    room = min(1.15, (max(heights) / min(heights)) ** 0.12 * 1.002)
    fitted(axes, "y", min(heights) / room, max(heights) * room, unit)
    first, last = min(p.x for p in points), max(p.x for p in points)
    margin = max(last / first, 1.5) ** 0.035
    dodge = max(last / first, 1.5) ** 0.006 if any(p.low != p.high for p in points) else 1.0
    fitted(axes, "x", first / margin, last * margin, "1")
    named_ticks(axes, {p.x: p.name for p in points}, WIDTH * 0.66)
    for height in block.references.values():
        axes.axhline(height, color=LIGHT["ink"], linewidth=1.1, dashes=(5, 4))
    for i, (name, line) in enumerate(series.items()):
        _draw_line(drawing, i, name, line, unit, dodge ** (i - (len(series) - 1) / 2))
    x_title(axes, block.x.title)
    y_title(drawing, f"{block.y.title} ({origins(p.value.origin for p in points)})")
    labels = [(line[-1].y, name, SERIES[i % len(SERIES)]) for i, (name, line) in enumerate(series.items())]
    labels += [(float(at), label, LIGHT["ink"]) for label, at in block.references.items()]
    right_labels(drawing, labels)
    left_out = f" Not drawn, as another point is at the same place: {', '.join(covered)}." if covered else ""
    text = block.text + left_out + not_drawn(list(every)[MOST_LINES:])
    return drawing.finish(block.title, text.strip(), alt_text(block.title, series))


def _draw_line(
    drawing: Drawing, i: int, name: str, line: Sequence[LinePoint], unit: str, aside: float
) -> None:
    """Draw one line, intervals as whiskers, moved `aside` so that no two whiskers coincide."""
    xs, ys = [p.x * aside for p in line], [p.y for p in line]
    drawing.line(xs, ys, i)
    tips = []
    for x, p in zip(xs, line, strict=True):
        shown = times(p.y) if unit == "x" else number(p.y) if unit == "1" else human(p.y, unit)
        if p.low != p.high:
            colour = SERIES[i % len(SERIES)]
            drawing.axes.plot([x, x], [p.low, p.high], color=colour, linewidth=2.2, solid_capstyle="butt")
            shown += f" ({number(p.low)} … {number(p.high)})"
        tips.append(Tip(f"{name}, {p.name}: {shown}", p.value.cell))
    drawing.points(list(zip(xs, ys, strict=True)), tips, i)


def _series(
    block: LinesBlock, spec: Spec, index: ResultIndex
) -> tuple[dict[str, list[LinePoint]], list[str]]:
    """Return for each line its points from left to right, and the names of those at the x of another."""
    series, covered = {}, dict[str, None]()
    for title, along, places in _lines_of(block, spec, index):
        points: dict[float, LinePoint] = {}
        for place in places:
            name = spec.name(along, place[along]).partition(" (")[0]
            p = point(block, index, name, **place)
            if p is not None and points.setdefault(p.x, p) is not p:
                covered[p.name] = None
        if points:
            series[title] = [points[x] for x in sorted(points)]
    return series, list(covered)


def _lines_of(
    block: LinesBlock, spec: Spec, index: ResultIndex
) -> Iterator[tuple[str, str, list[dict[str, str]]]]:
    """Yield the title of each line, the key whose names its points have, and the cells of its points."""
    for one in block.series:
        where = {**block.where, **one.where}
        workloads, variants = (index.names(key, where) for key in ("workload", "optimization"))
        places = [{"workload": w, "optimization": v} for w in workloads for v in variants]
        yield one.title, "workload", places
    if not block.series:
        where, key = block.where, str(block.line)
        along = "workload" if key == "optimization" else "optimization"
        for name in index.names(key, where):
            yield spec.name(key, name), along, [{key: name, along: one} for one in index.names(along, where)]


def point(
    block: LinesBlock, index: ResultIndex, name: str, workload: str, optimization: str
) -> LinePoint | None:
    """Return the point of a cell on the axes of the block; None where it lacks one of them."""
    across = None if block.x.field else _value(index, workload, optimization, block.x)
    x = index.field(workload, block.x.field) if block.x.field else across and across.median
    y = _value(index, workload, optimization, block.y)
    if not x or y is None:
        return None
    if block.x.field:
        name = tick_text(x, "B" if block.x.field.endswith("_B") else "1")
    elif across and block.x.ticks == "values":
        name = tick_text(x, across.unit)
    if not block.y.over:
        return LinePoint(x, y.median, name, y, y.median, y.median)
    pairing = Pairing(block.y.metric, block.y.method, block.y.over, draws=block.y.draws)
    comparison = compared(index, workload, optimization, pairing)
    if comparison is None or optimization == block.y.over:
        return None
    value, low, high = comparison.speed_up[:3]
    return LinePoint(x, value, name, y, low, high)


def _value(index: ResultIndex, workload: str, variant: str, axis: Axis) -> Value | None:
    value = index.get(workload, variant, axis.metric, axis.method)
    if value is not None and axis.per:
        value = divided(value, index, axis.per)
    return value if value and value.median > 0 else None


STRIP_ROW = 36
NEAR = 0.001  # relative errors are drawn to a linear scale within this, logarithmic beyond
TICKS = (-1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1, 10, 100)  # no estimate can be more than all too low


def error_strip(block: ErrorStripBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, the most accurate method first; None with fewer than two errors."""
    groups = errors_by_method(index, block.metric, block.where)
    errors = [one.median for group in groups.values() for one in group]
    if len(errors) < 2:
        return None
    methods = sorted(groups, key=lambda method: max(abs(one.median) for one in groups[method]))
    drawing = Drawing(block.id, 70 + STRIP_ROW * len(methods))
    axes = drawing.axes
    axes.set_xscale("symlog", linthresh=NEAR, linscale=0.7)
    axes.set_xlim(max(-1.6, min(1.3 * min(errors), -NEAR)), max(NEAR, 1.3 * max(map(abs, errors))))
    low, high = axes.get_xlim()
    set_ticks(axes.xaxis, [tick for tick in TICKS if low <= tick <= high], "%")
    axes.grid(axis="x")
    axes.axvline(0, color=LIGHT["ink"], linewidth=1.2)
    for row, method in enumerate(methods):
        places = [(one.median, row + (i * 7 % 11 - 5) * 0.05) for i, one in enumerate(groups[method])]
        tips = []
        for one in groups[method]:
            where = f"{spec.name('optimization', one.optimization)}, {spec.name('workload', one.workload)}"
            tips.append(Tip(f"{where}: {percent(one.median, True)}", one.cell))
        drawing.points(places, tips, faded=True, size=7)
    names = [f"{spec.name('method', one)} ({origins(v.origin for v in groups[one])})" for one in methods]
    drawing.rows(names)
    x_title(axes, block.x_title or spec.name("metric", block.metric))
    return drawing.finish(block.title, block.text, alt_text(block.title, names))


FIGURES: Mapping[type[Block], Callable[..., Figure | None]] = {
    BarsBlock: bars,
    ErrorStripBlock: error_strip,
    LinesBlock: lines,
}
"""Kinds of blocks to what draws their figures from a block, the report's spec and the run's values."""
