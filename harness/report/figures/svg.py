"""Finish the SVG of matplotlib: tool-tips, links to records, and colours that a style sheet can turn.

Text stays text. Colours are written in light, as attributes; a style sheet of one rule per colour replaces
them where the reader's system prefers dark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

WIDTH = 820
"""Width of a figure in user units (px), unless it is drawn for another window."""

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

MOST_LINES = 6
"""Lines that one figure draws at most."""

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
    """Return matplotlib's SVG with tips and links, and with colours as attributes."""
    import matplotlib

    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg.encode())
    for unwanted in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
        for parent in list(root.iter()):
            for child in parent.findall(unwanted):
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
        _plain(element)
        _round(element)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get("id") in tips:
                _tipped(child, tips[str(child.get("id"))])
    _drop_ids(root)
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
            at = list(parent).index(shape)
            link = ElementTree.Element(f"{{{SVG}}}a", {"href": f"#r-{tip.cell}"})
            parent.remove(shape)
            link.append(shape)
            parent.insert(at, link)


def _plain(element: ElementTree.Element) -> None:
    """Turn fill, stroke and font of a style into attributes, which a style sheet may override."""
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    style = element.attrib.pop("style", "")
    kept = []
    for part in filter(None, (one.strip() for one in style.split(";"))):
        name, _, value = part.partition(":")
        value = value.strip()
        if name == "font":
            size = re.search(r"([\d.]+)px", value)
            element.set("font-size", size[1] if size else str(FONT))
            if value.startswith(("bold", "600", "700")):
                element.set("font-weight", "600")
        elif name in ("fill", "stroke", "text-anchor", "opacity", "stroke-width", "stroke-dasharray"):
            element.set(name, value)
        elif name not in ("stroke-linejoin", "stroke-linecap", "stroke-miterlimit"):
            kept.append(f"{name}:{value}")
    if kept:
        element.set("style", ";".join(kept))
    if element.tag == f"{{{SVG}}}text" and "fill" not in element.attrib:
        element.set("fill", LIGHT["ink"])


def _drop_ids(root: ElementTree.Element) -> None:
    """Remove ids that nothing refers to: several figures stand on one page."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'"#([^"]+)"|url\(#([^)]+)\)', text))
    names = {name for pair in used for name in pair if name}
    for element in root.iter():
        if element.get("id") not in names:
            element.attrib.pop("id", None)


def _round(element: ElementTree.Element) -> None:
    """Write places to a hundredth of a pixel."""
    for name in ("d", "x", "y", "width", "height", "transform"):
        if name in element.attrib:
            text = re.sub(r"\s*\n\s*", " ", element.attrib[name].strip())
            element.set(name, re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", text))
    if not (element.text or "").strip():
        element.text = None
    element.tail = None
