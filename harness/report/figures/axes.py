"""Choose ticks of an axis and write them as engineers read them: `48 MB`, `250 ms`, `7B`, `1.5×`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

from harness.report.figures.svg import FONT, LIGHT, SMALL
from harness.units import LARGE, best_unit, in_unit, number, power_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FEWEST, MOST = 4, 9
LEAST = 3
"""An axis has at least so many ticks."""

NARROW = 3.0
"""An axis whose ends differ by less than this factor is linear."""

_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
"""Multiples of each power of ten, ever closer together."""

LETTER = 0.6
"""Width of a letter over the size of its font, on the wide side: fonts differ between machines."""

TITLE_LETTERS = 72
"""Letters per line of an x axis's title; the ends of longer lines could be cut off."""


def tick_text(value: float, unit: str) -> str:
    """Return `value` of base unit `unit` (or `x`, `%`) as a tick; large counts with k, M, B, T."""
    if value == 0:
        return "0"
    if unit == "x":
        return f"{value:.3g}×"
    if unit == "%":
        return f"{100 * value:+.3g} %".replace("-", "−")
    if unit == "1" and abs(value) >= LARGE:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        mantissa = value / 10.0**exponent
        return (
            f"{mantissa:.3g}×{power_of_ten(exponent)}" if f"{mantissa:.3g}" != "1" else power_of_ten(exponent)
        )
    if unit == "1":
        name = max(
            (n for n, size in _COUNTS.items() if abs(value) >= size), key=_COUNTS.__getitem__, default=""
        )
        if abs(value) < 1e4 or (float(value).is_integer() and abs(value) < 1e6 and value % 1000):
            return f"{value:,.0f}" if float(value).is_integer() else _plain(value)
        return _plain(value / _COUNTS[name]) + name
    shown = "s" if unit == "s" and abs(value) >= 1 else best_unit(value, unit)
    return f"{_plain(in_unit(value, unit, shown))} {shown}"


def _plain(value: float) -> str:
    text = number(value, 3)
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high`, at least three, closer together where the span is small."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    chosen: list[float] = []
    for steps in _STEPS:
        chosen = [step * 10.0**p for p in powers for step in steps if low <= step * 10.0**p <= high]
        if FEWEST <= len(chosen) <= MOST:
            return chosen
    if len(chosen) > MOST:
        every = [10.0**power for power in powers if low <= 10.0**power <= high]
        return every[:: math.ceil(len(every) / MOST)] if len(every) > MOST else every
    return linear_ticks(low, high)


def linear_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return about `count` multiples of a round number from `low` to `high`, at least three."""
    if low == high:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [i * step for i in range(first, last + 1)]
    return ticks if len(ticks) >= LEAST else linear_ticks(low, high, count + 1)


def set_ticks(axis: Axis, ticks: Sequence[float], unit: str) -> None:
    """Put labelled ticks on the axis, and no others."""
    axis.set_ticks(ticks, labels=[tick_text(tick, unit) for tick in ticks])
    axis.set_ticks([], minor=True)
    axis.set_tick_params(length=0, pad=6)


def logarithmic(axes: Axes, which: str, low: float, high: float, unit: str) -> None:
    """Make the x or y axis logarithmic from `low` to `high`, with round ticks and a faint grid."""
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    set_ticks(axis, log_ticks(low, high), unit)
    axes.grid(axis="x" if which == "x" else "y")


def linear(axes: Axes, which: str, low: float, high: float, unit: str) -> None:
    """Make the x or y axis linear from `low` to `high`, with round ticks and a faint grid."""
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    set_ticks(axes.xaxis if which == "x" else axes.yaxis, linear_ticks(low, high), unit)
    axes.grid(axis="x" if which == "x" else "y")


def thin_x_ticks(axes: Axes) -> None:
    """Keep every second, third ... of the x axis's ticks where the texts of neighbours would touch.

    For a figure that is laid out: names at the left take room from the axis.
    """
    labels = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    named = [(float(place), label.get_text()) for place, label in labels if label.get_text()]
    bottom = axes.get_ylim()[0]
    at = [float(axes.transData.transform((place, bottom))[0]) for place, _ in named]
    wide = [LETTER * SMALL * len(text) for _, text in named]
    for every in range(1, len(named)):
        kept = range(0, len(named), every)
        pairs = pairwise(kept)
        if all(abs(at[b] - at[a]) >= (wide[a] + wide[b]) / 2 + 4 for a, b in pairs):
            if every > 1:
                axes.xaxis.set_ticks([named[i][0] for i in kept], labels=[named[i][1] for i in kept])
            return


def fitted(axes: Axes, which: str, low: float, high: float, unit: str) -> None:
    """Make the x or y axis logarithmic, or linear where its ends are close together."""
    (linear if high < NARROW * low else logarithmic)(axes, which, low, high, unit)


def named_ticks(axes: Axes, names: Mapping[float, str], width_px: float) -> None:
    """Put the names on the x axis at their places, those left out whose text would touch another's."""
    to_share = axes.transData + axes.transAxes.inverted()
    px = {place: float(to_share.transform((place, axes.get_ylim()[0]))[0]) * width_px for place in names}
    kept = apart({place: (px[place], LETTER * SMALL * len(name)) for place, name in names.items()})
    axes.xaxis.set_ticks(list(names), labels=[name if place in kept else "" for place, name in names.items()])
    axes.xaxis.set_ticks([], minor=True)
    axes.xaxis.set_tick_params(length=3, pad=5)
    axes.grid(axis="x")


def apart(places: Mapping[float, tuple[float, float]]) -> list[float]:
    """Return those whose texts do not touch: the first, the last, and between them what has room."""
    ordered = sorted(places, key=lambda place: places[place][0])
    if not ordered:
        return []

    def room(left: float, right: float) -> bool:
        return places[right][0] - places[left][0] >= (places[left][1] + places[right][1]) / 2 + 6

    kept, last = ordered[:1], ordered[-1]
    for place in ordered[1:-1]:
        if room(kept[-1], place) and room(place, last):
            kept.append(place)
    return [*kept, last] if last not in kept and room(kept[-1], last) else kept


def x_title(axes: Axes, title: str) -> None:
    """Write the title of the x axis, a long one on two lines."""
    axes.set_xlabel("\n".join(wrap(title, TITLE_LETTERS)), fontsize=FONT, color=LIGHT["soft"], labelpad=8)
