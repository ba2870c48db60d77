"""Figures -> pictures: stacked bars, the spread of errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.report.frame import Figure, Frame
from harness.report.spec import Block, Spec
from harness.report.svg import (
    SERIES,
    WIDTH,
    Canvas,
    Picture,
    linear,
    round_ticks,
    symmetric,
    width_of,
)
from harness.report.tables import percent
from harness.units import ORIGIN_MARKS, in_unit, number

ROW = 27.0
NEAR = 0.001
"""Relative errors are drawn to a linear scale within this, logarithmic beyond."""


def bars(block: Block, spec: Spec, frame: Frame) -> Picture | None:
    """One horizontal bar a variant, stacked by metric; a variant that lacks one of them has `+ ?` after its
    sum."""
    fields = block.fields
    stacks: Mapping[str, str] = fields["stacks"]
    rows: dict[str, list[Figure | None]] = {}
    for workload in frame.values("workload", fields["where"]):
        for variant in frame.values("optimization", fields["where"]):
            parts = [frame.get(workload, variant, metric, fields["method"]) for metric in stacks]
            if any(parts):
                rows[spec.name("optimization", variant)] = parts
    widths = {name: [_value(part, fields["unit"]) for part in parts] for name, parts in rows.items()}
    longest = max((sum(width) for width in widths.values()), default=0.0)
    if longest <= 0:
        return None
    canvas = Canvas()
    top = canvas.legend(list(stacks.values()))
    left, bottom = max(map(width_of, rows)) + 8, top + ROW * len(rows)
    across = linear(0, longest, left, WIDTH - 62)
    for tick in round_ticks(longest):
        canvas.line(across(tick), top, across(tick), bottom)
        canvas.text(across(tick), bottom + 13, number(tick) if tick else "0", "middle", "soft")
    for i, (name, width) in enumerate(widths.items()):
        y, done = top + ROW * i, 0.0
        canvas.text(left - 8, y + ROW / 2, name, "end")
        for j, (label, part) in enumerate(zip(stacks.values(), width, strict=True)):
            if part > 0:
                tip = f"{name} · {label}: {number(part)} {fields['unit']}"
                canvas.bar(
                    across(done), y + 4, across(done + part) - across(done), ROW - 8, f"s{j % SERIES}", tip
                )
            done += part
        canvas.text(
            across(done) + 6, y + ROW / 2, number(done) + ("" if all(rows[name]) else " + ?"), size=12
        )
    canvas.line(left, top, left, bottom, "soft")
    marks = origins(part for parts in rows.values() for part in parts if part)
    canvas.text(
        (left + WIDTH - 62) / 2, bottom + 32, f"{fields['across'] or fields['unit']} {marks}", "middle"
    )
    return canvas.picture(block.id, block.title, block.text, alt(block, rows), bottom + 46)


def spread(block: Block, spec: Spec, frame: Frame) -> Picture | None:
    """The errors of each method, every cell a point, about zero."""
    groups: dict[str, list[Figure]] = {}
    for one in frame.select(block.fields["metric"], block.fields["where"]):
        groups.setdefault(one.method, []).append(one)
    if not groups:
        return None
    reach = max(NEAR, 1.15 * max(abs(one.value) for group in groups.values() for one in group))
    methods = sorted(groups, key=lambda method: max(abs(one.value) for one in groups[method]))
    names = {method: f"{spec.name('method', method)} {origins(groups[method])}" for method in methods}
    canvas = Canvas()
    left, top, high = max(map(width_of, names.values())) + 8, 8.0, 34.0
    bottom = top + high * len(methods)
    across = symmetric(reach, NEAR, left + 10, WIDTH - 30)
    for size in (-100, -10, -1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1, 10, 100):
        if abs(size) <= reach and not size < -1:  # no estimate can be more than all too small
            canvas.line(across(size), top, across(size), bottom, "faint" if size else "ink")
            canvas.text(across(size), bottom + 13, _tick(size), "middle", "soft", 12)
    for i, method in enumerate(methods):
        y = top + high * (i + 0.5)
        canvas.text(left - 8, y, names[method], "end")
        for j, one in enumerate(groups[method]):
            tip = f"{spec.name('optimization', one.optimization)}, {one.workload}: {percent(one.value, True)}"
            canvas.dot(across(one.value), y + (j * 7 % 11 - 5) * 1.7, 3.6, "s0", tip, 0.45)
    canvas.text((left + WIDTH) / 2, bottom + 33, block.fields["across"], "middle")
    return canvas.picture(block.id, block.title, block.text, alt(block, names.values()), bottom + 46)


def _value(figure: Figure | None, unit: str) -> float:
    return in_unit(figure.value, figure.unit, unit) if figure else 0.0


def origins(figures: Iterable[Figure]) -> str:
    """The marks of all origins among the figures."""
    return " ".join(sorted({ORIGIN_MARKS[figure.origin] for figure in figures}))


def alt(block: Block, names: Iterable[str]) -> str:
    """What a figure shows, for those who do not see it."""
    return f"{block.title}: {', '.join(names)}"


def _tick(size: float) -> str:
    return f"{100 * size:+,.6g} %".replace("-", "−") if size else "0"
