"""The timeline of one step as a page of its own: ranks above one another, the critical path, launch gaps.

A column of the picture stands for many events: it has the colour of the state with most time in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.critical_path import critical_path
from harness.instruments.traces.intervals import OwnedTimes
from harness.instruments.traces.reading.trace import Ints
from harness.instruments.traces.segments import STATE_NAMES, State

WIDTH, LEFT, LANE, BAND = 1200, 110, 44, 20
"""Pixels: of the picture, of the names at its left, of a rank, and of its states."""

COLUMNS = 1000

COLOURS = {
    State.COMPUTING: "#0072b2",
    State.COMMUNICATION: "#d55e00",
    State.COPYING: "#b8508c",
    State.PREPARING: "#c9ced6",
    State.CALLING: "#8d96a3",
    State.WAITING_FOR_DATA: "#5b4fb0",
    State.WAITING_FOR_RANK: "#e0a800",
    State.IDLE: "#f0f2f5",
}
"""Okabe and Ito's palette for colour-blind readers; gaps are grey."""

HIDDEN = "#f0a36f"
"""Communication under way, whether or not it is exposed."""

STYLE = """
body { margin: 0; background: #f5f7fa; color: #1c2430;
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
main { max-width: 80rem; margin: 0 auto; padding: 1rem 1.25rem }
section { background: #fff; border: 1px solid #d5dbe3; border-radius: 10px; padding: 1rem 1.25rem;
  margin: 0 0 1rem; overflow-x: auto }
h1 { font-size: 1.25rem; margin: .4rem 0 1rem } h2 { font-size: 1rem; margin: 0 0 .5rem }
.lead { font-weight: 600; font-size: 1.1rem; margin: 0 0 .3rem }
.soft { color: #5b6675; font-size: .85rem; margin: .3rem 0 }
svg { width: 100%; min-width: 50rem; height: auto; display: block }
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #5b6675 }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; margin: .6rem 0 0 }
.key i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; border-radius: 2px;
  vertical-align: -.1em; border: 1px solid #0002 }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 0 1rem;
  align-items: start }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums }
td, th { text-align: right; padding: .2rem .4rem; border-bottom: 1px solid #e9edf2 }
td { white-space: nowrap } td:first-child, th:first-child { text-align: left; white-space: normal;
  overflow-wrap: anywhere }
.wide { grid-column: 1 / -1 } th { color: #5b6675 }
"""


class PageTable(NamedTuple):
    """A table of the page: its title, column heads and rows; the first column is text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def page(of: Breakdown, title: str, lead: str, tables: Sequence[PageTable], notes: Sequence[str] = ()) -> str:
    """Return the HTML page; it needs no other file and no network."""
    step = middle_step(of)
    number = of.step_numbers[step]
    keys = [(colour, STATE_NAMES[state]) for state, colour in COLOURS.items() if of.share_of(state) > 0]
    if any(one.overlapped_s for one in of.ranks):
        keys.append((HIDDEN, "communication under way"))
    legend = "".join(f'<span><i style="background:{c}"></i>{escape(name)}</span>' for c, name in keys)
    path = '<span><i style="background:#1c2430"></i>critical path</span>' if len(of.ranks) > 1 else ""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>\n<main>'
        f'<h1>{escape(title)}</h1><section><p class="lead">{escape(lead)}</p>'
        f"{''.join(f'<p class=soft>{escape(note)}</p>' for note in notes)}</section>\n"
        f"<section><h2>Step {number}, the median of {len(of.step_numbers)}</h2>{timeline(of, step)}"
        f'<div class="key">{legend}{path}</div></section>\n'
        f'<div class="tables">{"".join(_table(table) for table in tables)}</div></main></html>\n'
    )


def middle_step(of: Breakdown) -> int:
    """Return the place of the step with the median length."""
    lengths = np.mean([one.step_ns for one in of.ranks], axis=0)
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])


def timeline(of: Breakdown, step: int) -> str:
    """Return one step of all ranks as SVG."""
    edges = np.array([_edges(of, i, step) for i in range(len(of.ranks))])
    start_ns, end_ns = int(edges[:, 0].min()), int(edges[:, 1].max())
    scale = (WIDTH - LEFT) / max(end_ns - start_ns, 1)
    height = LANE * len(of.ranks) + 24
    shapes = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of the ranks">']
    bins_ns = np.linspace(start_ns, end_ns, COLUMNS + 1).astype(np.int64)
    for i, rank in enumerate(of.ranks):
        y = i * LANE
        shapes.append(f'<text x="0" y="{y + 15}">rank {rank.rank}</text>')
        for left_ns, right_ns, state, tip in _runs(rank, step, bins_ns, of.matching.offsets_ns[i]):
            x, width = LEFT + (left_ns - start_ns) * scale, (right_ns - left_ns) * scale
            shapes.append(_box(x, y, width, BAND, COLOURS[state], tip))
        for left_ns, right_ns in _under_way(rank, bins_ns, of.matching.offsets_ns[i], edges[i]):
            x, width = LEFT + (left_ns - start_ns) * scale, (right_ns - left_ns) * scale
            shapes.append(_box(x, y + BAND + 2, width, 5, HIDDEN, "communication under way"))
    shapes.extend(_path(of, step, start_ns, scale))
    shapes.extend(_axis(start_ns, end_ns, scale, height))
    return "".join(shapes) + "</svg>"


def _edges(of: Breakdown, rank: int, step: int) -> tuple[int, int]:
    one = of.ranks[rank]
    chosen = one.activity.steps[one.chosen[step]]
    return chosen.start_ns - of.matching.offsets_ns[rank], chosen.end_ns - of.matching.offsets_ns[rank]


def _runs(
    rank: RankBreakdown, step: int, bins_ns: Ints, offset_ns: int
) -> Iterator[tuple[int, int, State, str]]:
    """Yield neighbouring columns of one state: from, to, state, and a tip with the longest event."""
    cut = rank.segments
    chosen = np.flatnonzero(cut.step == rank.chosen[step])
    first_ns, last_ns = cut.start_ns[chosen[0]] - offset_ns, cut.end_ns[chosen[-1]] - offset_ns
    at = np.unique(np.concatenate([cut.start_ns[chosen] - offset_ns, bins_ns, [last_ns]]))
    at = at[(at >= first_ns) & (at <= last_ns)]
    middle = at[:-1]
    segment = chosen[np.searchsorted(cut.start_ns[chosen] - offset_ns, middle, side="right") - 1]
    column = np.clip(np.searchsorted(bins_ns, middle, side="right") - 1, 0, COLUMNS - 1)
    spent = np.zeros((COLUMNS, len(State)))
    np.add.at(spent, (column, cut.state[segment]), np.diff(at))
    state = np.where(spent.sum(axis=1) > 0, spent.argmax(axis=1), -1)
    change = np.flatnonzero(np.diff(state)) + 1
    for begin, end in zip([0, *change], [*change, COLUMNS], strict=True):
        if state[begin] >= 0:
            here = segment[(column >= begin) & (column < end) & (cut.state[segment] == state[begin])]
            longest = int(here[np.argmax(cut.duration_ns[here])])
            tip = _tip(rank, longest, spent[begin:end, state[begin]].sum())
            left_ns, right_ns = max(int(bins_ns[begin]), int(first_ns)), min(int(bins_ns[end]), int(last_ns))
            yield left_ns, right_ns, State(state[begin]), tip


def _tip(rank: RankBreakdown, segment: int, spent_ns: float) -> str:
    cut = rank.segments
    state, event = State(cut.state[segment]), int(cut.event[segment])
    text = f"{STATE_NAMES[state]}, {spent_ns / 1e6:.3g} ms"
    if state == State.WAITING_FOR_RANK:
        text += f", for rank {cut.slower_rank[segment]}"
    of = rank.activity.operation_names(event)
    before = "before " if state in (State.PREPARING, State.CALLING) else ""
    return f"{text}; longest: {before}{of}" if of else text


def _under_way(rank: RankBreakdown, bins_ns: Ints, offset_ns: int, edges: Ints) -> Iterator[tuple[int, int]]:
    """Yield the times of communication within the step, joined where the picture cannot separate them."""
    of: OwnedTimes = rank.activity.pieces(rank.activity.communication)
    smallest_ns = int(bins_ns[1] - bins_ns[0])
    left_ns, right_ns = None, 0
    for start_ns, end_ns in zip(
        (of.start_ns - offset_ns).tolist(), (of.end_ns - offset_ns).tolist(), strict=True
    ):
        start_ns, end_ns = max(start_ns, int(edges[0])), min(end_ns, int(edges[1]))
        if start_ns >= end_ns:
            continue
        if left_ns is not None and start_ns - right_ns > smallest_ns:
            yield left_ns, right_ns
            left_ns = None
        left_ns = start_ns if left_ns is None else left_ns
        right_ns = max(right_ns, end_ns)
    if left_ns is not None:
        yield left_ns, right_ns


def _path(of: Breakdown, step: int, start_ns: int, scale: float) -> Iterator[str]:
    """Yield the critical path as a line that goes from rank to rank."""
    if len(of.ranks) < 2:
        return
    points = []
    for part in critical_path(of, step):
        y = part.rank * LANE + BAND + 11
        points += [
            f"{LEFT + (part.start_ns - start_ns) * scale:.1f},{y}",
            f"{LEFT + (part.end_ns - start_ns) * scale:.1f},{y}",
        ]
    yield f'<polyline points="{" ".join(points)}" fill="none" stroke="#1c2430" stroke-width="2"/>'


def _axis(start_ns: int, end_ns: int, scale: float, height: int) -> Iterator[str]:
    unit_ms = 10 ** np.floor(np.log10(max((end_ns - start_ns) / 1e6, 1e-6)))
    step_ms = next(
        unit_ms * k for k in (0.1, 0.2, 0.5, 1, 2) if (end_ns - start_ns) / 1e6 / (unit_ms * k) <= 10
    )
    for i in range(int((end_ns - start_ns) / 1e6 / step_ms) + 1):
        x = LEFT + i * step_ms * 1e6 * scale
        yield f'<path d="M{x:.1f} 0V{height - 16}" stroke="#1c2430" stroke-opacity=".12"/>'
        yield f'<text x="{x:.1f}" y="{height - 3}" text-anchor="middle">{i * step_ms:.4g} ms</text>'


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:g}" width="{max(width, 0.3):.1f}" height="{height:g}" fill="{colour}">'
        f"<title>{escape(tip)}</title></rect>"
    )


def _table(table: PageTable) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    wide = ' class="wide"' if len(table.head) > 4 else ""
    return f"<section{wide}><h2>{escape(table.title)}</h2><table><tr>{head}</tr>{rows}</table></section>"
