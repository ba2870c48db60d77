"""Draw a figure with matplotlib and finish its SVG: two palettes, tool-tips, links to records, fixed bytes.

The same figure gives the same bytes under the same version of matplotlib. Text stays text. Colours are
written in light; a style sheet of one rule per colour replaces them where the reader's system prefers dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

from harness.units import ORIGINS_IN_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 820
"""Of every figure, in user units (px)."""

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

SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"


class Tip(NamedTuple):
    """What a shape says when it is pointed at, and the record that it leads to."""

    text: str
    cell: str = ""


class Figure(NamedTuple):
    """A finished figure: its SVG, in which links to records are `#r-<cell>`."""

    id: str
    title: str
    text: str
    alt: str
    svg: str

    def file(self) -> str:
        """Return the SVG as a file of its own, whose links lead to the page in the folder above."""
        style = f"<style>{dark_rules()}</style>"
        ground = f'<rect width="100%" height="100%" fill="{LIGHT["ground"]}"/>'
        head, _, body = self.svg.partition(">")
        return f"{head}>{style}{ground}{body}\n".replace('href="#r-', 'href="../report.html#r-')

    def inline(self) -> str:
        """Return the SVG for a page whose style sheet has `dark_rules`."""
        return self.svg


def dark_rules() -> str:
    """Return the style sheet that replaces each light colour by its dark one."""
    rules = "".join(
        f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}'
        for light, dark in PALETTE.values()
    )
    return f"@media (prefers-color-scheme:dark){{{rules}}}"


@contextmanager
def drawing_style(id: str) -> Iterator[None]:
    """Draw within matplotlib's defaults and our style, whatever else this process or its user has set."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": id,
                "text.parse_math": False,
                "font.family": "DejaVu Sans",
                "font.size": FONT,
                "text.color": LIGHT["ink"],
                "axes.edgecolor": LIGHT["soft"],
                "axes.labelcolor": LIGHT["soft"],
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "grid.color": LIGHT["faint"],
                "xtick.color": LIGHT["soft"],
                "ytick.color": LIGHT["soft"],
                "xtick.labelsize": SMALL,
                "ytick.labelsize": SMALL,
            }
        )
        yield


class Drawing:
    """A canvas with one pair of axes, and the tool-tips of what is drawn on it; used in `drawing_style`."""

    def __init__(self, id: str, height: float) -> None:
        from matplotlib.figure import Figure as Canvas

        self.id = id
        self.tips: dict[str, Sequence[Tip]] = {}
        self.canvas: Canvas = Canvas((WIDTH / 72, height / 72), dpi=72, layout="constrained")
        self.canvas.patch.set_visible(False)
        self.axes: Axes = self.canvas.add_subplot()
        self.axes.patch.set_visible(False)

    def tip(self, tips: Sequence[Tip], series: int = 0) -> str:
        """Return the group id of shapes that have these tips, one each in the order drawn."""
        name = f"tips-{len(self.tips)}-k{series % len(SERIES)}"
        self.tips[name] = tips
        return name

    def points(
        self,
        places: Sequence[tuple[float, float]],
        tips: Sequence[Tip],
        series: int = 0,
        *,
        hollow: bool = False,
        faded: bool = False,
        size: float = 8,
    ) -> None:
        """Draw a point per place, each with its tip."""
        colour = SERIES[series % len(SERIES)]
        self.axes.plot(
            [x for x, _ in places],
            [y for _, y in places],
            linestyle="none",
            marker=MARKERS[series % len(MARKERS)],
            markersize=size,
            color=colour,
            markerfacecolor=LIGHT["ground"] if hollow else colour,
            markeredgecolor=colour if hollow else LIGHT["ground"],
            markeredgewidth=2 if hollow else 0.8,
            alpha=0.5 if faded else None,
            gid=self.tip(tips, series),
            clip_on=False,
            zorder=4,
        )

    def name(
        self, text: str, place: tuple[float, float], dx: float, dy: float = 0, size: float = SMALL
    ) -> None:
        """Write a text to the right (dx > 0), to the left (dx < 0) or above its place, over any line."""
        self.axes.annotate(
            text,
            place,
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right" if dx < 0 else "center",
            va="center",
            fontsize=size,
            color=LIGHT["ink"] if size >= SMALL else LIGHT["soft"],
            annotation_clip=False,
            bbox={"facecolor": LIGHT["ground"], "edgecolor": "none", "pad": 1},
        )

    def finish(self, title: str, text: str, alt: str) -> Figure:
        """Return the figure as drawn."""
        out = io.StringIO()
        self.canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return Figure(self.id, title, text, alt, _finished(out.getvalue(), self.tips, alt))


def origins(marks: Iterable[str]) -> str:
    """Return the origins of what is drawn, in words for the end of an axis title."""
    return ", ".join(sorted({ORIGINS_IN_WORDS.get(one, one) for one in marks}))


def right_labels(drawing: Drawing, labels: Sequence[tuple[float, str, str]], gap: float = 15) -> None:
    """Write each (y, text, colour) at the right edge at its height, moved apart where texts would touch."""
    axes = drawing.axes
    drawing.canvas.draw_without_rendering()
    to_px = axes.transData.transform
    low, high = axes.bbox.y0, axes.bbox.y1
    order = sorted(range(len(labels)), key=lambda i: labels[i][0])
    wanted = [float(to_px((axes.get_xlim()[1], labels[i][0]))[1]) for i in order]
    for i, y_px in zip(order, spaced(wanted, gap, low, high), strict=True):
        axes.annotate(
            labels[i][1],
            (1, (y_px - low) / (high - low)),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=labels[i][2],
            fontsize=SMALL,
            annotation_clip=False,
        )


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending places at least `gap` apart, near the `wanted`, and within the ends if possible."""
    groups: list[tuple[list[float], float]] = []  # members, and where the middle of the group is
    for place in wanted:
        groups.append(([place], place))
        while len(groups) > 1 and _touch(groups[-2], groups[-1], gap):
            members = groups[-2][0] + groups[-1][0]
            groups[-2:] = [(members, sum(members) / len(members))]
    places: list[float] = []
    for members, middle in groups:
        half = gap * (len(members) - 1) / 2
        middle = min(max(middle, low + half), max(high - half, low + half))
        places += [middle - half + gap * i for i in range(len(members))]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    return places


def _touch(one: tuple[list[float], float], other: tuple[list[float], float], gap: float) -> bool:
    return other[1] - one[1] < gap * (len(one[0]) + len(other[0])) / 2


def _finished(svg: str, tips: Mapping[str, Sequence[Tip]], alt: str) -> str:
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
            element.set(name, re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", text))
    if not (element.text or "").strip():
        element.text = None
    element.tail = None


def alt_text(title: str, names: Iterable[str]) -> str:
    """Return what a figure shows, for those who do not see it."""
    return f"{title}: {', '.join(names)}"


def y_title(drawing: Drawing, title: str) -> None:
    """Write the title of the y axis above it, where it is read without turning the head."""
    drawing.axes.set_title(title, loc="left", fontsize=FONT, color=LIGHT["soft"], pad=10)
