"""Draw all claims as a forest: the claimed band against what was found, on one logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.claims.answers import AnsweredClaim
from harness.claims.evidence import ILLUSTRATION
from harness.claims.paper import UNIT_OF, PaperClaim
from harness.report.figures.axes import log_ticks, set_ticks, x_title
from harness.report.figures.figure import Drawing, Figure, drawing_style
from harness.report.figures.svg import LIGHT, SERIES, Tip
from harness.units import times

ROW = 24
SERIES_OF = {"A": 0, "B": 2, "C": 6}
"""Colour and marker by strength."""

NAMES = {"A": "measured or published", "B": "predicted", "C": "context"}
WIDEST = 30.0
"""How far from the claimed value the axis reaches at most; what lies beyond ends at the edge."""

LONGEST = 52
"""Letters of a claim's name at the axis."""


class FoundRange(NamedTuple):
    """What was found of one strength, over the claimed value."""

    strength: str
    low: float
    high: float


class ForestRow(NamedTuple):
    """A claim with its band and what was found, all over the claimed value."""

    answered: AnsweredClaim
    band: tuple[float, float]
    found: tuple[FoundRange, ...]


def forest(rows: Sequence[AnsweredClaim]) -> Figure | None:
    """Return the figure, None with fewer than two claims that have a band and values."""
    drawn = [one for row in rows if (one := _row(row))]
    if len(drawn) < 2:
        return None
    with drawing_style("answers"):
        drawing = Drawing("answers", 96 + ROW * len(drawn))
        axes = drawing.axes
        axes.axvline(1, color=LIGHT["ink"], linewidth=1)
        for y, row in enumerate(drawn):
            _draw(drawing, y, row)
        axes.set_xscale("log")
        axes.set_xlim(1 / WIDEST, WIDEST)
        set_ticks(axes.xaxis, log_ticks(1 / WIDEST, WIDEST), "x")
        axes.grid(axis="x")
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.set_yticks(range(len(drawn)), [_name(row.answered) for row in drawn])
        axes.tick_params(axis="y", length=0)
        x_title(axes, "Found over claimed; the band is what the claim accepts")
        return drawing.finish(
            "Claimed and found",
            "A band is what the claim accepts, a line the range of what was found, over the claimed value: "
            "circles and blue were measured or published (A), triangles and green predicted (B), crosses and "
            "grey are context (C). A line at an edge goes on beyond it.",
            f"Claimed and found, {len(drawn)} claims on one logarithmic axis",
        )


def _row(row: AnsweredClaim) -> ForestRow | None:
    """Return a claim with what was found over its value.

    None without a band, or without values of the answer's own strength in the claim's unit.
    """
    reference = _reference(row.claim)
    found = sorted(_found(row)) if reference else []
    judged = row.strength in [one.strength for one in found] or row.answer == "misquoted"
    if not reference or not found or not judged or row.claim.band is None:
        return None
    by_strength = [
        FoundRange(
            strength,
            min(one.low for one in found if one.strength == strength) / reference,
            max(one.high for one in found if one.strength == strength) / reference,
        )
        for strength in dict.fromkeys(one.strength for one in found)
    ]
    low, high = row.claim.band
    return ForestRow(row, (low / reference, high / reference), tuple(by_strength))


def _reference(claim: PaperClaim) -> float | None:
    """Return the claimed value: the geometric middle of a band, or its only end."""
    if claim.band is None:
        return None
    low, high = claim.band
    if low > 0 and math.isfinite(high):
        return math.sqrt(low * high)
    return high if math.isfinite(high) else low


def _found(row: AnsweredClaim) -> Iterator[FoundRange]:
    """Yield ranges in the claim's own unit."""
    unit = UNIT_OF.get(row.claim.unit, row.claim.unit)
    for one in row.evidence:
        alike = one.judged.unit == unit and one.judged.per == row.claim.per
        if one.grade != ILLUSTRATION and not one.related and alike and one.low > 0:
            yield FoundRange(one.strength, one.low, one.high)
    for record in row.claim.public:
        values = list(record.values.values())
        if values and min(values) > 0:
            yield FoundRange("A" if record.decides else "C", min(values), max(values))


def _draw(drawing: Drawing, y: int, row: ForestRow) -> None:
    axes = drawing.axes
    low, high = (min(max(end, 1 / WIDEST), WIDEST) for end in row.band)
    axes.barh(y, high - low, left=low, height=0.62, color=LIGHT["faint"], alpha=0.9, linewidth=0)
    step = 0.22
    for i, one in enumerate(row.found):
        series = SERIES_OF[one.strength]
        at = y + step * (i - (len(row.found) - 1) / 2)
        ends = [min(max(end, 1 / WIDEST), WIDEST) for end in (one.low, one.high)]
        axes.plot(ends, [at, at], color=SERIES[series], linewidth=2, solid_capstyle="round", zorder=3)
        value = f"{times(one.low)} … {times(one.high)} the claimed value"
        text = f"{row.answered.claim.claim}: {NAMES[one.strength]}, {value}"
        inside = [(end, at) for end, value in zip(ends, (one.low, one.high), strict=True) if end == value]
        if inside:
            drawing.points(inside, [Tip(text)] * len(inside), series, size=6)


def _name(row: AnsweredClaim) -> str:
    text = row.claim.claim
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
    return f"{short} ({row.answer}, {row.strength})"
