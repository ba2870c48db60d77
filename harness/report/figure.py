"""Draw a figure with matplotlib: the same bytes for the same figure under one of its versions."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

from harness.report.axes import (
    DASHES,
    FONT,
    LETTER,
    LIGHT,
    MARKERS,
    SERIES,
    SMALL,
    WIDTH,
    Tip,
    dark_rules,
    finished,
    thin_x_ticks,
)
from harness.units import ORIGINS_IN_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


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

    def __init__(self, id: str, height: float, width: float = WIDTH) -> None:
        from matplotlib.figure import Figure as Canvas

        self.id = id
        self.tips: dict[str, Sequence[Tip]] = {}
        self.canvas: Canvas = Canvas((width / 72, height / 72), dpi=72, layout="constrained")
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
        marker: str = "",
    ) -> None:
        """Draw a point per place, each with its tip; `marker`: instead of that of the series."""
        colour = SERIES[series % len(SERIES)]
        self.axes.plot(
            [x for x, _ in places],
            [y for _, y in places],
            linestyle="none",
            marker=marker or MARKERS[series % len(MARKERS)],
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

    def line(self, xs: Sequence[float], ys: Sequence[float], series: int, width: float = 1.8) -> None:
        """Draw a line in the colour and the dashes of a series."""
        dashes = DASHES[series % len(DASHES)] or (None, None)
        self.axes.plot(xs, ys, color=SERIES[series % len(SERIES)], linewidth=width, dashes=dashes)

    def legend(self, place: Literal["outside upper left", "outside lower left"], columns: int) -> None:
        """Write the legend in so many columns."""
        self.canvas.legend(loc=place, ncols=columns, frameon=False, fontsize=SMALL, columnspacing=1.4,
                           handlelength=1.1)  # fmt: skip

    def rows(self, names: Sequence[str]) -> None:
        """Make the y axis that of rows with these names, the first at the top."""
        self.axes.set_ylim(len(names) - 0.4, -0.6)
        self.axes.set_yticks(range(len(names)), names, color=LIGHT["ink"])
        self.axes.tick_params(length=0)

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
        self.canvas.draw_without_rendering()
        thin_x_ticks(self.axes)
        out = io.StringIO()
        self.canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return Figure(self.id, title, text, alt, finished(out.getvalue(), self.tips, alt))


def origins(marks: Iterable[str]) -> str:
    """Return the origins of what is drawn, in words for the end of an axis title."""
    return ", ".join(sorted({ORIGINS_IN_WORDS.get(one, one) for one in marks}))


def right_labels(drawing: Drawing, labels: Sequence[tuple[float, str, str]], gap: float = 15) -> None:
    """Write each (y, text, colour) at the right edge at its height, moved apart where texts would touch."""
    axes = drawing.axes
    drawing.canvas.draw_without_rendering()
    low, high, right = axes.bbox.y0, axes.bbox.y1, axes.get_xlim()[1]
    ordered = sorted(labels, key=lambda one: one[0])
    wanted = [float(axes.transData.transform((right, y))[1]) for y, _, _ in ordered]
    for (_, text, colour), y_px in zip(ordered, spaced(wanted, gap, low, high), strict=True):
        axes.annotate(text, (1, (y_px - low) / (high - low)), xycoords="axes fraction", xytext=(8, 0),
                      textcoords="offset points", va="center", color=colour, fontsize=SMALL,
                      annotation_clip=False)  # fmt: skip


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending places at least `gap` apart, near the `wanted`, and within the ends if possible."""
    groups: list[list[float]] = []  # each around the mean of its members
    for place in wanted:
        group = [place]
        while groups and fmean(group) - fmean(groups[-1]) < gap * (len(groups[-1]) + len(group)) / 2:
            group = groups.pop() + group
        groups.append(group)
    places: list[float] = []
    for members in groups:
        half = gap * (len(members) - 1) / 2
        middle = min(max(fmean(members), low + half), max(high - half, low + half))
        places += [middle - half + gap * i for i in range(len(members))]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    return places


def not_drawn(names: Sequence[str]) -> str:
    """Return a sentence about the lines for which a figure has no room; "" for none."""
    return f" Not drawn, as six lines are the most: {', '.join(names)}." if names else ""


def alt_text(title: str, names: Iterable[str]) -> str:
    """Return what a figure shows, for those who do not see it."""
    return f"{title}: {', '.join(names)}"


def y_title(drawing: Drawing, title: str) -> None:
    """Write the title of the y axis above it, where it is read without turning the head."""
    drawing.axes.set_title(title, loc="left", fontsize=FONT, color=LIGHT["soft"], pad=10)


_OFFSETS = ((8, 0), (-8, 0), (0, 13), (0, -13), (8, 12), (8, -12), (-8, 12), (-8, -12), (8, 18), (8, -18))
_HALF_MARK, _HALF_LINE = 5.0, 6.0

Place = tuple[float, float]


def name_points(
    drawing: Drawing, names: Iterable[tuple[str, Place]], points: Sequence[Place], size: float
) -> None:
    """Write each name next to its place, unless it has no room; `points`: all that is drawn."""
    drawing.canvas.draw_without_rendering()
    to_px, inside = drawing.axes.transData.transform, drawing.axes.bbox
    boxes: list[tuple[float, float, float, float]] = []
    for x, y in map(to_px, points):
        boxes.append((x - _HALF_MARK, x + _HALF_MARK, y - _HALF_MARK, y + _HALF_MARK))
    for name, place in names:
        x, y = to_px(place)
        wide = LETTER * size * len(name)
        for dx, dy in _OFFSETS:
            left = x + dx - (wide / 2 if dx == 0 else wide if dx < 0 else 0)
            box = (left, left + wide, y + dy - _HALF_LINE, y + dy + _HALF_LINE)
            if inside.x0 < left and box[1] < inside.x1 and not any(_overlap(box, other) for other in boxes):
                boxes.append(box)
                drawing.name(name, place, dx, dy, size=size)
                break


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
