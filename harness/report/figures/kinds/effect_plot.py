"""Draw every variant's ratio to the baseline: a dot with its interval, what is claimed, the noise; sorted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.claims.model import Claim
from harness.report.data.result_index import ResultIndex
from harness.report.data.speedup import Comparison, compared, noise_of
from harness.report.figures.axes import LIGHT, SERIES, Tip, log_ticks, set_ticks, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, origins
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import percent
from harness.units import times

ROW = 28
MOST_ROWS = 40
"""Rows that are drawn at most; a table has them all."""

BETTER, WORSE, NEITHER = 0, 1, 6
"""Series whose colour a row has."""

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

    @property
    def label(self) -> str:
        """Return the speed-up of a time, the change of anything else."""
        return times(self.value) if self.comparison.unit == "s" else percent(self.value - 1, True)


def effect_plot(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, None with fewer than two rows; speed-ups of times, ratios of anything else."""
    rows = _rows(block, spec, index)
    if len(rows) < 2:
        return None
    drawing = Drawing(block.id, 84 + ROW * len(rows))
    axes = drawing.axes
    noise = _noise(block, index)
    if noise:
        axes.axvspan(*noise, color=LIGHT["faint"], alpha=0.6, linewidth=0)
    axes.axvline(1, color=LIGHT["ink"], linewidth=1)
    for y, row in enumerate(rows):
        _draw(drawing, y, row)
    ends = [end for row in rows for end in (row.low, row.high, *(row.claim or ())[:2])]
    low, high = min(1.0, *ends) / 1.05, max(1.0, *ends)
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.14 * 1.02)
    set_ticks(axes.xaxis, log_ticks(low, high * 1.05), "x")
    axes.grid(axis="x")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], color=LIGHT["ink"])
    axes.tick_params(length=0)
    x_title(axes, _title(block, spec, rows, noise is not None))
    return drawing.finish(block.title, block.text, alt_text(block.title, (row.name for row in rows)))


def _draw(drawing: Drawing, y: int, row: EffectRow) -> None:
    """Draw a row: its interval, its dot, its number, and below them the bracket of what is claimed."""
    colour, axes = SERIES[row.series], drawing.axes
    if row.claim:
        low, high, _ = row.claim
        ends = [low, low, high, high], [y + 0.22, y + 0.36, y + 0.36, y + 0.22]
        axes.plot(*ends, color=LIGHT["soft"], linewidth=1.3, solid_joinstyle="miter")
    axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=3)
    text = f"{row.name}: {row.comparison.text} {row.comparison.effect}"
    text += f"; claimed: {_range(row)}, {row.claim[2]}" if row.claim else ""
    drawing.points([(row.value, y)], [Tip(text, row.comparison.cell)], row.series)
    drawing.name(row.label, (row.high, y), 9)


def _range(row: EffectRow) -> str:
    low, high = (times(end) for end in (row.claim or (1.0, 1.0))[:2])
    return f"{low} … {high}"


def _title(block: ReportBlock, spec: Spec, rows: Sequence[EffectRow], noise: bool) -> str:
    """Return the title of the x axis, with the origins of what is drawn and what the marks mean."""
    base = spec.name("optimization", block.fields["baseline"])
    name = spec.name("metric", block.fields["metric"])
    faster = rows[0].comparison.unit == "s"
    what = f"Speed-up over {base}" if faster else f"{name}, relative to {base}"
    marks = [origins(row.comparison.origin for row in rows)]
    marks += ["grey band: noise of the baseline"] if noise else []
    marks += ["bracket: claimed"] if any(row.claim for row in rows) else []
    return f"{block.fields['x_title'] or what} ({'; '.join(marks)})"


def _rows(block: ReportBlock, spec: Spec, index: ResultIndex) -> list[EffectRow]:
    """Return the variants of each workload, the best first; those of one workload stay together.

    A row names what differs: variant and workload, or the workload alone where all are of one variant.
    """
    fields = block.fields
    workloads = index.names("workload", fields["where"], fields["metric"])
    others = set(index.names("optimization", fields["where"])) - {fields["baseline"], fields["noise"]}
    rows: list[EffectRow] = []
    for workload in workloads:
        own = []
        for variant in index.names("optimization", fields["where"]):
            comparison = compared(index, workload, variant, fields)
            if comparison is None or variant in (fields["baseline"], fields["noise"]):
                continue
            name = spec.name("optimization", variant)
            where = spec.name("workload", workload)
            label = name if len(workloads) == 1 else where if len(others) == 1 else f"{name}, {where}"
            ratio = comparison.speed_up if comparison.unit == "s" else comparison.ratio
            if math.isfinite(ratio.low) and ratio.low > 0 and math.isfinite(ratio.high):
                claim = _claimed(fields, workload, variant, faster=comparison.unit == "s")
                series = _series(comparison.effect, fields["better"])
                own.append(EffectRow(label, *ratio[:3], comparison, series, claim))
        upwards = bool(own) and (own[0].comparison.unit == "s" or fields["better"] == "higher")
        rows += sorted(own, key=lambda row: row.value, reverse=upwards)
    return rows[:MOST_ROWS]


def _series(effect: str, better: str) -> int:
    """Return the colour of an effect: that of a time, so turned where more is better."""
    series = NEITHER if better == "neither" else SERIES_OF.get(effect, NEITHER)
    return {BETTER: WORSE, WORSE: BETTER}.get(series, series) if better == "higher" else series


def _claimed(
    fields: Mapping[str, Any], workload: str, variant: str, faster: bool
) -> tuple[float, float, str] | None:
    """Return the range that the first claim with one states for a variant, and who states it."""
    found: list[tuple[bool, tuple[float, float, str]]] = []
    claims: Sequence[Claim] = fields.get("claims", ())
    wanted = workload, variant, fields["metric"], fields["method"], fields["baseline"]
    for claim in claims:
        low, high = (claim.value, claim.upper) if claim.upper is not None else claim.accepted
        stated = any(
            (one.workload, one.variant, one.metric, one.method, one.relative_to) == wanted
            for one in claim.interpretations
        )
        if stated and claim.relation != "increasing" and 0 < low <= high < math.inf:
            ends = (low, high) if faster else (1 / high, 1 / low)
            found.append((claim.upper is None, (*ends, claim.quoted_by)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _noise(block: ReportBlock, index: ResultIndex) -> tuple[float, float] | None:
    """Return the band of the noise where one workload alone is drawn and its baseline was timed twice."""
    workloads = index.names("workload", block.fields["where"], block.fields["metric"])
    noise = noise_of(index, workloads[0], block.fields) if len(workloads) == 1 else None
    if noise is None or noise.low <= 0:
        return None
    end = max(noise.high, 1 / noise.low)
    return 1 / end, end
