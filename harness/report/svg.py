"""A canvas that writes SVG: what the figures of a report are drawn on.

Written by hand: matplotlib takes half a second to import and to draw four figures, half of what a whole
answer may take, and draws other bytes in each of its versions. Colours are roles (`@ink`, `@s0`): the page's
style sheet gives them values in light and dark; the file beside report.md has the light ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 820.0
"""Of every figure, in user units; heights follow from what is drawn."""

FONT = 13.0
LETTER = 0.58
"""Width of a letter over the size of its font, on the wide side: fonts differ between machines."""

COLOURS = {
    "ink": "#1c2430",
    "soft": "#5b6675",
    "faint": "#d5dbe3",
    "ground": "#ffffff",
    "s0": "#2f6fde",
    "s1": "#e08a1e",
    "s2": "#2a9d74",
    "s3": "#c8488a",
    "s4": "#7a5bd0",
    "s5": "#8a94a3",
    "s6": "#b5522b",
    "s7": "#128ea8",
}
SERIES = 8
"""So many colours for series; a ninth begins again."""

FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


class Picture(NamedTuple):
    """A figure whose colours are still roles."""

    id: str
    title: str
    text: str
    alt: str
    height: float
    drawing: str

    def file(self) -> str:
        """The SVG as a file of its own, in light colours on their ground."""
        ground = f'<rect width="{WIDTH:g}" height="{self.height:g}" fill="@ground"/>'
        return _coloured(self._svg(ground), COLOURS) + "\n"

    def inline(self) -> str:
        """The SVG for a page, whose style sheet has the colours."""
        return _coloured(self._svg(""), {role: f"var(--{role})" for role in COLOURS})

    def _svg(self, ground: str) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" '
            f'aria-label="{_plain(self.alt)}" font-family="{FAMILY}" font-size="{FONT:g}">'
            f"{ground}{self.drawing}</svg>"
        )


class Canvas:
    """Shapes in the order drawn; x to the right, y downwards."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        role: str = "faint",
        width: float = 1,
        dash: str = "",
    ) -> None:
        """A straight line."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="@{role}" '
            f'stroke-width="{width:g}"{dashed}/>'
        )

    def path(self, points: Sequence[tuple[float, float]], role: str) -> None:
        """A line through the points."""
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{through}" fill="none" stroke="@{role}" stroke-width="2.2" '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, role: str, tip: str) -> None:
        """A filled rectangle that says `tip` when pointed at."""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="@{role}">'
            f"<title>{_plain(tip)}</title></rect>"
        )

    def dot(self, x: float, y: float, radius: float, role: str, tip: str, opacity: float = 1) -> None:
        """A filled circle that says `tip` when pointed at."""
        faded = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self.shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="@{role}"{faded}>'
            f"<title>{_plain(tip)}</title></circle>"
        )

    def ring(self, x: float, y: float, radius: float, role: str, tip: str) -> None:
        """A hollow circle that says `tip` when pointed at."""
        self.shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="@ground" stroke="@{role}" '
            f'stroke-width="2.2"><title>{_plain(tip)}</title></circle>'
        )

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", role: str = "ink", size: float = FONT
    ) -> None:
        """A line of text whose middle is at height `y`."""
        sized = f' font-size="{size:g}"' if size != FONT else ""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y + 0.35 * size:.1f}" text-anchor="{anchor}" fill="@{role}"{sized}>'
            f"{_plain(text)}</text>"
        )

    def legend(self, names: Sequence[str], top: float = 12) -> float:
        """The series by colour and name, in as many rows as they need; the height below the last."""
        x, y = 4.0, top
        for i, name in enumerate(names):
            wide = 34 + width_of(name)
            if x > 4 and x + wide > WIDTH:
                x, y = 4.0, y + 20
            self.bar(x, y - 5.5, 18, 11, f"s{i % SERIES}", name)
            self.text(x + 24, y, name)
            x += wide + 8
        return y + 18

    def picture(self, id: str, title: str, text: str, alt: str, height: float) -> Picture:
        """What was drawn."""
        return Picture(id, title, text, alt, height, "\n".join(self.shapes))


def width_of(text: str, size: float = FONT) -> float:
    """About how wide a text is."""
    return LETTER * size * len(text)


def linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From values to places."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def logarithmic(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From values above zero to places."""
    place = linear(math.log(low), math.log(high), start, end)
    return lambda value: place(math.log(value))


def symmetric(reach: float, near: float, start: float, end: float) -> Callable[[float], float]:
    """From values within ± `reach` to places: linear within ± `near`, logarithmic beyond."""

    def bent(value: float) -> float:
        over = abs(value) / near
        return math.copysign(over if over <= 1 else 1 + math.log10(over), value)

    place = linear(-bent(reach), bent(reach), start, end)
    return lambda value: place(bent(value))


def round_ticks(high: float, count: int = 6) -> list[float]:
    """Round figures from 0 to `high`, about `count` of them."""
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    return [i * step for i in range(int(high / step * 1.000001) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round figures between `low` and `high`, closer together where the span is small."""
    span = high / low
    choices = ((10, (1, 1.5, 2, 3, 4, 5, 7)), (100, (1, 2, 5)), (2000, (1, 3)), (math.inf, (1,)))
    steps = next(steps for widest, steps in choices if span < widest)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return [
        tick for power in powers for tick in (step * 10.0**power for step in steps) if low <= tick <= high
    ]


def _plain(text: str) -> str:
    return escape(text).replace("@", "&#64;")


def _coloured(drawing: str, colours: Mapping[str, str]) -> str:
    return re.sub(r"@(\w+)", lambda found: colours[found.group(1)], drawing)
