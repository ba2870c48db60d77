"""Draw every variant's ratio to the baseline: a dot with its interval as a whisker, sorted."""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.report.axes import log_ticks, set_ticks, x_title
from harness.report.figure import Drawing, Figure, alt_text, origins
from harness.report.result_index import ResultIndex
from harness.report.spec import ReportBlock, Spec
from harness.report.speedup import Comparison, compared, noise_of
from harness.report.svg import LIGHT, SERIES, Tip
from harness.units import times

ROW = 28
MOST_ROWS = 40
"""So many rows are drawn; a table has them all."""

COLOURS = {"pays": SERIES[0], "costs": SERIES[1], "no difference": LIGHT["soft"], "undecided": LIGHT["soft"]}
SERIES_OF = {"pays": 0, "costs": 1, "no difference": 6, "undecided": 6}


class EffectRow(NamedTuple):
    """A variant on one workload: its name, its ratio with the interval's ends, and what it does."""

    name: str
    value: float
    low: float
    high: float
    comparison: Comparison


def effect_plot(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, None where nothing compares; speed-ups of times, ratios of anything else."""
    rows = _rows(block, spec, index)
    if not rows:
        return None
    faster = rows[0].comparison.unit == "s"
    drawing = Drawing(block.id, 84 + ROW * len(rows))
    axes = drawing.axes
    noise = _noise(block, index)
    if noise:
        axes.axvspan(*noise, color=LIGHT["faint"], alpha=0.6, linewidth=0)
    axes.axvline(1, color=LIGHT["ink"], linewidth=1)
    for y, row in enumerate(rows):
        colour = COLOURS[row.comparison.effect]
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=3)
        text = f"{row.name}: {row.comparison.text} {row.comparison.effect}"
        drawing.points([(row.value, y)], [Tip(text, row.comparison.cell)], SERIES_OF[row.comparison.effect])
        drawing.name(times(row.value), (row.high, y), 9)
    low = min(1.0, *(row.low for row in rows)) / 1.05
    high = max(1.0, *(row.high for row in rows))
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.14 * 1.02)
    set_ticks(axes.xaxis, log_ticks(low, high * 1.05), "x")
    axes.grid(axis="x")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], color=LIGHT["ink"])
    axes.tick_params(length=0)
    name = spec.name("metric", block.fields["metric"])
    base = spec.name("optimization", block.fields["baseline"])
    what = f"Speed-up over {base}" if faster else f"{name}, relative to {base}"
    band = "; grey band: noise of the baseline" if noise else ""
    title = block.fields["x_title"] or what
    x_title(axes, f"{title} ({origins(row.comparison.origin for row in rows)}{band})")
    return drawing.finish(block.title, block.text, alt_text(block.title, (row.name for row in rows)))


def _rows(block: ReportBlock, spec: Spec, index: ResultIndex) -> list[EffectRow]:
    """Return the variants of each workload, the best first; those of one workload stay together."""
    fields = block.fields
    workloads = index.names("workload", fields["where"], fields["metric"])
    rows: list[EffectRow] = []
    for workload in workloads:
        own = []
        for variant in index.names("optimization", fields["where"]):
            comparison = compared(index, workload, variant, fields)
            if comparison is None or variant in (fields["baseline"], fields["noise"]):
                continue
            name = spec.name("optimization", variant)
            label = f"{name}, {spec.name('workload', workload)}" if len(workloads) > 1 else name
            ratio = comparison.speed_up if comparison.unit == "s" else comparison.ratio
            if math.isfinite(ratio.low) and ratio.low > 0 and math.isfinite(ratio.high):
                own.append(EffectRow(label, ratio.value, ratio.low, ratio.high, comparison))
        rows += sorted(own, key=lambda row: -row.value if row.comparison.unit == "s" else row.value)
    return rows[:MOST_ROWS]


def _noise(block: ReportBlock, index: ResultIndex) -> tuple[float, float] | None:
    """Return the band of the noise where one workload alone is drawn and its baseline was timed twice."""
    workloads = index.names("workload", block.fields["where"], block.fields["metric"])
    noise = noise_of(index, workloads[0], block.fields) if len(workloads) == 1 else None
    if noise is None or noise.low <= 0:
        return None
    end = max(noise.high, 1 / noise.low)
    return 1 / end, end
