"""Write names next to points, where they touch no other name and no point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.report.figures.axes import LETTER
from harness.report.figures.figure import Drawing

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
    for point in points:
        x, y = map(float, to_px(point))
        boxes.append((x - _HALF_MARK, x + _HALF_MARK, y - _HALF_MARK, y + _HALF_MARK))
    for name, place in names:
        x, y = map(float, to_px(place))
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
