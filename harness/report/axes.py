"""Choose ticks of an axis and write them as engineers read them: `48 MB`, `250 ms`, `7B`, `1.5×`.

Finish the SVG of matplotlib: tool-tips, links to records, text that stays text. Colours are written in light,
as attributes; a style sheet of one rule per colour replaces them where the reader's system prefers dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Literal, NamedTuple
from xml.etree import ElementTree

from harness.units import LARGE, best_unit, in_unit, number, power_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDTH = 820  # width of a figure in user units (px), unless it is drawn for another window

FONT = 13
SMALL = 12
FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

PALETTE: Mapping[str, tuple[str, str]] = {
    "ink": ("#1c2430", "#e4e9f0"),
    "soft": ("#5b6675", "#9aa6b6"),
    "faint": ("#d5dbe3", "#364152"),
    "ground": ("#fffffe", "#19212c"),
    # Okabe and Ito's palette for colour-blind readers, darkened where white is behind it
    "s0": ("#0072b2", "#56b4e9"),
    "s1": ("#d55e00", "#ff8a3d"),
    "s2": ("#009070", "#2fc79b"),
    "s3": ("#b8508c", "#ee9bc9"),
    "s4": ("#b07c00", "#f0c43c"),
    "s5": ("#5b4fb0", "#b3a8ff"),
    "s6": ("#6e7784", "#aab4c2"),
    "s7": ("#8a4a20", "#d7a070"),
}
"""Role -> its colour in light and in dark."""

LIGHT = {role: light for role, (light, _) in PALETTE.items()}
SERIES = tuple(LIGHT[f"s{i}"] for i in range(8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Markers in addition to colours, for readers who cannot distinguish two colours."""

DASHES: Sequence[tuple[float, ...]] = ((), (7, 3), (2, 2.5), (9, 2.5, 2, 2.5), (4, 2), (12, 3))
"""Patterns of lines, for the same readers."""

MOST_LINES = 6  # lines that one figure draws at most

SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"


class Tip(NamedTuple):
    """What a shape says when it is pointed at, and the record that it leads to."""

    text: str
    cell: str = ""


def dark_rules() -> str:
    """Return the style sheet that replaces each light colour by its dark one."""
    rules = "".join(
        f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}'
        for light, dark in PALETTE.values()
    )
    return f"@media (prefers-color-scheme:dark){{{rules}}}"


def finished(svg: str, tips: Mapping[str, Sequence[Tip]], alt: str) -> str:
    """Return matplotlib's SVG with tips and links, with colours as attributes and without needless ids."""
    import matplotlib

    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg.encode())
    for parent in list(root.iter()):
        for child in [one for one in parent if one.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style")]:
            parent.remove(child)
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": f"{float(width):g}",
        "height": f"{float(height):g}",
        "role": "img",
        "aria-label": alt,
        "font-family": FAMILY,
        "stroke-linejoin": "round",
        "data-matplotlib": matplotlib.__version__,
    }
    for element in root.iter():
        _unstyled(element)
        _round(element)
    for element in list(root.iter()):
        if element.get("id") in tips:
            _tipped(element, tips[str(element.get("id"))])
    # ids that nothing refers to go: several figures stand on one page
    used = set(re.findall(r'(?:"|url\()#([^")]+)', ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    return ElementTree.tostring(root, encoding="unicode")


def _tipped(group: ElementTree.Element, tips: Sequence[Tip]) -> None:
    """Give each shape of a group its tip and its link, in the order drawn."""
    group.set("class", str(group.get("id")).rpartition("-")[2])
    shapes = [
        (parent, child)
        for parent in group.iter()
        if not parent.tag.endswith("defs")
        for child in parent
        if child.tag in (f"{{{SVG}}}use", f"{{{SVG}}}path")
    ]
    if len(shapes) != len(tips):
        raise ValueError(f"{len(shapes)} shapes were drawn for {len(tips)} tips")
    for (parent, shape), tip in zip(shapes, tips, strict=True):
        ElementTree.SubElement(shape, f"{{{SVG}}}title").text = tip.text
        if tip.cell:
            link = ElementTree.Element(f"{{{SVG}}}a", {"href": f"#r-{tip.cell}"})
            link.append(shape)
            parent[list(parent).index(shape)] = link


def _unstyled(element: ElementTree.Element) -> None:
    """Turn fill, stroke and font of a style into attributes, which a style sheet may override."""
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    kept = []
    for part in element.attrib.pop("style", "").split(";"):
        name, _, value = (text.strip() for text in part.partition(":"))
        if name == "font":
            size = re.search(r"([\d.]+)px", value)
            element.set("font-size", size[1] if size else str(FONT))
            if value.startswith(("bold", "600", "700")):
                element.set("font-weight", "600")
        elif name in ("fill", "stroke", "text-anchor", "opacity", "stroke-width", "stroke-dasharray"):
            element.set(name, value)
        elif name not in ("", "stroke-linejoin", "stroke-linecap", "stroke-miterlimit"):
            kept.append(f"{name}:{value}")
    if kept:
        element.set("style", ";".join(kept))
    if element.tag == f"{{{SVG}}}text" and "fill" not in element.attrib:
        element.set("fill", LIGHT["ink"])


def _round(element: ElementTree.Element) -> None:
    for name in ("d", "x", "y", "width", "height", "transform"):
        if name in element.attrib:
            text = re.sub(r"\s*\n\s*", " ", element.attrib[name].strip())
            element.set(name, re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", text))
    if not (element.text or "").strip():
        element.text = None
    element.tail = None


FEWEST, MOST = 4, 9
LEAST = 3  # an axis has at least so many ticks
NARROW = 3.0  # an axis whose ends differ by less than this factor is linear

_COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
"""Multiples of each power of ten, ever closer together."""

LETTER = 0.6  # width of a letter over the size of its font, on the wide side: fonts differ between machines
TITLE_LETTERS = 72  # letters per line of an x axis's title; the ends of longer lines could be cut off


def tick_text(value: float, unit: str) -> str:
    """Return `value` of base unit `unit` (or `x`, `%`) as a tick; large counts with k, M, B, T."""
    if value == 0:
        return "0"
    if unit == "x":
        return f"{value:.3g}×"
    if unit == "%":
        return f"{100 * value:+.3g} %".replace("-", "−")
    if unit != "1":
        shown = "s" if unit == "s" and abs(value) >= 1 else best_unit(value, unit)
        return f"{_plain(in_unit(value, unit, shown))} {shown}"
    if abs(value) >= LARGE:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        mantissa = f"{value / 10.0**exponent:.3g}"
        return power_of_ten(exponent) if mantissa == "1" else f"{mantissa}×{power_of_ten(exponent)}"
    whole = float(value).is_integer()
    if abs(value) < 1e4 or (whole and abs(value) < 1e6 and value % 1000):
        return f"{value:,.0f}" if whole else _plain(value)
    name, size = next((name, size) for name, size in _COUNTS if abs(value) >= size)
    return _plain(value / size) + name


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


def linear(
    axes: Axes, which: Literal["x", "y"], low: float, high: float, unit: str, ticks: Sequence[float] = ()
) -> None:
    """Make the x or y axis linear from `low` to `high`, with `ticks`, else round ones, and a faint grid."""
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    set_ticks(axes.xaxis if which == "x" else axes.yaxis, ticks or linear_ticks(low, high), unit)
    axes.grid(axis=which)


def logarithmic(axes: Axes, which: Literal["x", "y"], low: float, high: float, unit: str) -> None:
    """Make the x or y axis logarithmic, as `linear` makes it linear."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    linear(axes, which, low, high, unit, log_ticks(low, high))


def thin_x_ticks(axes: Axes) -> None:
    """Keep every second, third ... of the x axis's ticks where the texts of neighbours would touch.

    For a figure that is laid out: names at the left take room from the axis.
    """
    labels = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    named = [(float(place), label.get_text()) for place, label in labels if label.get_text()]
    bottom = axes.get_ylim()[0]
    ends = [(float(axes.transData.transform((place, bottom))[0]), len(text)) for place, text in named]
    for every in range(1, len(named)):
        pairs = pairwise(ends[::every])
        if all(abs(b - a) >= LETTER * SMALL * (m + n) / 2 + 4 for (a, m), (b, n) in pairs):
            if every > 1:
                places, texts = zip(*named[::every], strict=True)
                axes.xaxis.set_ticks(places, labels=texts)
            return


def fitted(axes: Axes, which: Literal["x", "y"], low: float, high: float, unit: str) -> None:
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
