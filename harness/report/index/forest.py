"""Draw all claims as a forest: the claimed band against all that was found, on one logarithmic axis.

There are two drawings of it: one for wide windows and paper, with the claims at the left, and one for a
telephone, where each claim stands above its ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from textwrap import wrap
from typing import NamedTuple

from harness.claims.answers import NOT_DECIDED, AnsweredClaim
from harness.claims.evidence import ILLUSTRATION, Evidence
from harness.claims.paper import PaperClaim
from harness.report.axes import (
    FONT,
    LETTER,
    LIGHT,
    SERIES,
    SMALL,
    Tip,
    log_ticks,
    set_ticks,
    tick_text,
)
from harness.report.figure import Drawing, Figure, drawing_style
from harness.report.index.answers_text import alike, ends_text, evidence_text, public_text, value_text

ILLUSTRATED = "set-up"
"""The kind of a range that the set-up fixes beforehand. The other kinds are the strengths A, B and C."""

SERIES_OF = {"A": 0, "B": 2, "C": 6, ILLUSTRATED: 6}
MARKER_OF = {"A": "o", "B": "^", "C": "X", ILLUSTRATED: "D"}
KINDS = {
    "A": "A: measured, published, or a formula",
    "B": "B: predicted with a known error",
    "C": "C: weaker, such as emulation",
    ILLUSTRATED: "fixed by the set-up, not counted",
}
WIDEST = 20.0
"""How far from the claimed value the axis reaches; what lies beyond ends in an arrow with its value."""

LINE, LANE, GAP = 17, 10, 12  # heights in px of a line of text and of a range, and the room between claims
WITH_VALUE = 14  # height in px of a range that goes on beyond the axis, with the value

LEGEND_LINE, SWATCH, TICKS = 20, 30, 24
"""Heights in px of a line of the legend and of the axis's numbers, and the width of the legend's samples."""


class FoundRange(NamedTuple):
    """What was found in one way, over the claimed value."""

    kind: str  # one of KINDS
    low: float
    high: float
    low_text: str  # in the claim's unit
    high_text: str
    text: str  # all of it in words

    @property
    def height(self) -> float:
        """Return the height of its line in px."""
        return WITH_VALUE if self.low < 1 / WIDEST or self.high > WIDEST else LANE


class ForestRow(NamedTuple):
    """A claim with its band, over the claimed value, and all ranges that were found in its unit."""

    answered: AnsweredClaim
    band: tuple[float, float]
    found: tuple[FoundRange, ...]

    @property
    def ranges_height(self) -> float:
        """Return the height of all its ranges in px."""
        return sum(one.height for one in self.found)


class Size(NamedTuple):
    """The places of a drawing, in px: the axis begins at `left` and ends `right` before the drawing's end."""

    id: str
    width: float
    left: float
    right: float
    above: bool  # each claim stands above its ranges, not at the left
    columns: int  # of the legend

    @property
    def axis(self) -> float:
        """Return the length of the axis."""
        return self.width - self.left - self.right

    @property
    def letters(self) -> int:
        """Return how many letters of a claim's words fit on one line."""
        return int((self.axis if self.above else self.left - GAP) / (LETTER * FONT))

    def x(self, px: float) -> float:
        """Return the value that lies `px` from the axis's begin."""
        return float(WIDEST ** (2 * px / self.axis - 1))


WIDE = Size("answers", 1000, 320, 130, above=False, columns=3)
NARROW = Size("answers_narrow", 350, 8, 8, above=True, columns=1)


def forest(rows: Sequence[AnsweredClaim], size: Size = WIDE) -> Figure | None:
    """Return the figure, None with fewer than two claims that have a band and values in its unit."""
    drawn = [one for row in rows if (one := _row(row))]
    if len(drawn) < 2:
        return None
    heights = list(accumulate((_height(row, size) for row in drawn), initial=0.0))
    head = LEGEND_LINE * math.ceil(len(_samples()) / size.columns) + 2 * GAP + LINE + TICKS
    height = head + heights[-1] + TICKS
    with drawing_style(size.id):
        drawing = Drawing(size.id, height, size.width)
        drawing.canvas.set_layout_engine("none")
        axes = drawing.axes
        axes.set_position(
            (size.left / size.width, TICKS / height, size.axis / size.width, heights[-1] / height)
        )
        axes.set_xscale("log")
        axes.set_xlim(1 / WIDEST, WIDEST)
        axes.set_ylim(heights[-1], 0)  # in px from the axis's top
        axes.set_yticks([])
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        set_ticks(axes.xaxis, log_ticks(1 / WIDEST, WIDEST), "x")
        axes.tick_params(axis="x", labeltop=True, labelbottom=False)
        for tick in axes.get_xticks():  # again at the lower end, as the picture is higher than a window
            axes.text(tick, heights[-1] + TICKS / 2, tick_text(tick, "x"), ha="center", va="center",
                      fontsize=SMALL, color=LIGHT["soft"])  # fmt: skip
        for row, (top, bottom) in zip(drawn, pairwise(heights), strict=True):
            _draw(drawing, size, row, top, bottom)
        _draw_legend(drawing, size, head)
        return drawing.finish(
            "Claimed and found",
            "Everything that was found, over the claimed value: the geometric middle of a band, or its only "
            "end. Each line is the range of what was found in one way.",
            f"What {len(drawn)} claims accept and what was found, over the claimed value, on one "
            "logarithmic axis",
        )


def _row(row: AnsweredClaim) -> ForestRow | None:
    """Return a claim with every range in its unit over its value; None without a band or such ranges.

    The claimed value is the geometric middle of a band, or its only end.
    """
    claim = row.claim
    if claim.band is None:
        return None
    low, high = claim.band
    reference = math.sqrt(low * high) if low > 0 and math.isfinite(high) else min(claim.band, key=_unbounded)
    if not reference:
        return None
    found = [
        one._replace(low=one.low / reference, high=one.high / reference)
        for one in sorted(_found(row), key=lambda one: list(KINDS).index(one.kind))
    ]
    return ForestRow(row, (low / reference, high / reference), tuple(found)) if found else None


def _unbounded(end: float) -> bool:
    return end <= 0 or math.isinf(end)


def _found(row: AnsweredClaim) -> Iterator[FoundRange]:
    """Yield every range in the claim's own unit, or on the same value in another one."""
    claim = row.claim
    for one in row.evidence:
        scale = None if one.related else _scale(one, claim)
        if scale is not None:
            kind = ILLUSTRATED if one.grade == ILLUSTRATION else one.strength
            ends = scale * one.low, scale * one.high
            yield FoundRange(kind, *ends, *ends_text(one, claim), evidence_text(one, claim))
    for record in claim.public:
        if record.values:
            low, high = min(record.values.values()), max(record.values.values())
            texts = value_text(low, claim.unit, claim.per), value_text(high, claim.unit, claim.per)
            kind = "A" if record.decides else "C"
            yield FoundRange(kind, low, high, *texts, public_text(record, claim))


def _scale(one: Evidence, claim: PaperClaim) -> float | None:
    """Return what makes values the claim's: 1 in its own unit, None where they are not on the same value.

    40 bytes per parameter and 280 GB of 7 billion parameters are one claim, with one relative band.
    """
    if alike(one, claim):
        return 1.0
    (low, high), band = one.judged.accepted, claim.band
    if band is None or not (0 < low < high < math.inf and 0 < band[0] < band[1] < math.inf):
        return None
    same = math.isclose(high / low, band[1] / band[0], rel_tol=1e-6)
    return band[0] / low if same else None


def _label(row: ForestRow, size: Size) -> list[str]:
    return wrap(row.answered.claim.claim, size.letters)


def _height(row: ForestRow, size: Size) -> float:
    text, ranges = LINE * len(_label(row, size)), row.ranges_height
    return GAP + (text + LINE + GAP / 3 + ranges if size.above else max(text, ranges))


def _draw(drawing: Drawing, size: Size, row: ForestRow, top: float, bottom: float) -> None:
    """Draw a claim between two heights: its words, its answer, its band and its ranges."""
    axes, label = drawing.axes, _label(row, size)
    answer = f"{row.answered.answer}, {row.answered.strength}"
    ranges, middle = row.ranges_height, (top + bottom) / 2
    start = bottom - GAP / 2 - ranges if size.above else middle - ranges / 2
    lines = (start, bottom - GAP / 2) if size.above else (top, bottom)
    axes.vlines(axes.get_xticks(), *lines, color=LIGHT["faint"], linewidth=0.8, zorder=0)
    axes.vlines([1], *lines, color=LIGHT["soft"], linewidth=1, zorder=2)
    if size.above:
        under = top + GAP / 2 + LINE * len(label)
        _write(drawing, size, label, 0, (top + GAP / 2 + under) / 2, weight="bold")
        _write(drawing, size, [answer], 0, under + LINE / 2, colour="soft")
    else:
        _write(drawing, size, label, -GAP, middle, align="right")
        _write(drawing, size, [answer], size.axis + GAP, middle, weight="bold")
    low, high = (min(max(end, 1 / WIDEST), WIDEST) for end in row.band)
    _draw_band(drawing, (low, high), start, ranges, row.answered.answer == NOT_DECIDED)
    for one in row.found:
        _draw_range(drawing, size, one, start + one.height / 2, row.answered.claim.claim)
        start += one.height


def _draw_band(
    drawing: Drawing, ends: tuple[float, float], start: float, height: float, undecided: bool
) -> None:
    """Draw what a claim accepts; of an undecided one the outline alone, dashed."""
    drawing.axes.barh(
        start + height / 2, ends[1] - ends[0], left=ends[0], height=height + 2, clip_on=False, zorder=1,
        facecolor="none" if undecided else LIGHT["faint"], linestyle=(0, (3, 2)),
        edgecolor=LIGHT["soft"] if undecided else "none", linewidth=1.2 if undecided else 0,
    )  # fmt: skip


def _draw_line(drawing: Drawing, kind: str, ends: Sequence[float], y: float) -> None:
    thin = kind == ILLUSTRATED
    drawing.axes.plot(ends, [y, y], color=SERIES[SERIES_OF[kind]], linewidth=1.2 if thin else 2.2,
                      linestyle=(0, (1, 2)) if thin else "-", clip_on=False, zorder=3)  # fmt: skip


def _draw_ends(drawing: Drawing, kind: str, ends: Sequence[float], y: float, tip: Tip) -> None:
    hollow, places = kind == ILLUSTRATED, [(end, y) for end in ends]
    look = {"hollow": hollow, "size": 5 if hollow else 6.5, "marker": MARKER_OF[kind]}
    drawing.points(places, [tip] * len(ends), SERIES_OF[kind], **look)  # type: ignore[arg-type]


def _draw_range(drawing: Drawing, size: Size, one: FoundRange, y: float, claim: str) -> None:
    """Draw a range; what lies beyond the axis ends at its edge in an arrow, with the value."""
    first, last = 1 / WIDEST, WIDEST
    tip = Tip(f"{claim}: {KINDS[one.kind]}. {one.text}")
    _draw_line(drawing, one.kind, [min(max(end, first), last) for end in (one.low, one.high)], y)
    inside = [end for end in dict.fromkeys((one.low, one.high)) if first <= end <= last]
    if inside:
        _draw_ends(drawing, one.kind, inside, y, tip)
    texts = one.low_text, one.high_text
    if one.high > last:
        beyond = " … ".join(dict.fromkeys(texts if one.low > last else texts[1:]))
        _draw_arrow(drawing, size, one.kind, (last, y), tip, beyond, inside)
    if one.low < first:
        beyond = " … ".join(dict.fromkeys(texts if one.high < first else texts[:1]))
        _draw_arrow(drawing, size, one.kind, (first, y), tip, beyond, inside)


def _draw_arrow(
    drawing: Drawing, size: Size, kind: str, edge: tuple[float, float], tip: Tip, text: str,
    inside: Sequence[float],
) -> None:  # fmt: skip
    """Draw an arrow at an edge and write the value that lies beyond next to it, clear of marks `inside`."""
    right = edge[0] > 1
    drawing.points([edge], [tip], SERIES_OF[kind], size=8, marker=">" if right else "<")
    wide = 10 + LETTER * SMALL * len(text) + 8
    reach = size.x(size.axis - wide) if right else size.x(wide)
    under = [end for end in inside if (end > reach if right else end < reach)]
    at = (min(under) if right else max(under)) if under else edge[0]
    over_its_line = {"facecolor": LIGHT["ground"], "edgecolor": "none", "pad": 0.5}
    drawing.axes.annotate(
        text, (at, edge[1]), xytext=(-10 if right else 10, 0), textcoords="offset points",
        ha="right" if right else "left", va="center_baseline", fontsize=SMALL, zorder=5,
        bbox=over_its_line if inside else None,
    )  # fmt: skip


def _write(
    drawing: Drawing, size: Size, lines: Sequence[str], px: float, y: float, *,
    align: str = "left", weight: str = "normal", colour: str = "ink",
) -> None:  # fmt: skip
    """Write lines of text around the height `y`, `px` from the axis's begin."""
    for number, line in enumerate(lines):
        drawing.axes.text(
            size.x(px),
            y + LINE * (number - (len(lines) - 1) / 2),
            line,
            ha=align,
            va="center_baseline",
            fontsize=FONT,
            fontweight=weight,
            color=LIGHT[colour],
        )


def _samples() -> list[tuple[str, str]]:
    return [
        ("band", "what the claim accepts"),
        ("undecided", "the same, where the answer is undecided"),
        *KINDS.items(),
        ("arrow", "goes on beyond the axis, to this value"),
    ]


def _draw_legend(drawing: Drawing, size: Size, head: float) -> None:
    samples = _samples()
    per_column = math.ceil(len(samples) / size.columns)
    for number, (look, text) in enumerate(samples):
        column, line = divmod(number, per_column)
        px = column * size.width / size.columns - size.left + 8
        y = LEGEND_LINE * (line + 0.5) + GAP / 2 - head
        ends = size.x(px), size.x(px + SWATCH - 8)
        if look in ("band", "undecided"):
            _draw_band(drawing, ends, y - 5, 10, look == "undecided")
        elif look == "arrow":
            _draw_line(drawing, "C", ends, y)
            drawing.points([(ends[1], y)], [Tip(text)], SERIES_OF["C"], size=8, marker=">")
        else:
            _draw_line(drawing, look, ends, y)
            _draw_ends(drawing, look, ends, y, Tip(text))
        _write(drawing, size, [text], px + SWATCH, y)
    _write(
        drawing, size, ["Found over claimed, which is 1×"], size.axis / 2, -TICKS - LINE / 2,
        align="center", colour="soft",
    )  # fmt: skip
