"""A breakdown as tables of text, and as a file for Perfetto.

The file is in Chrome's JSON format, which ui.perfetto.dev and chrome://tracing open. Its tracks are the
events of each rank, the states of each rank, and the critical path: which rank the others depend on at each
time of a step. Clocks are aligned as in the breakdown.
"""

from __future__ import annotations

import gzip
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from harness.instruments.traces import shortened
from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.communication import BY_NAME, HOW, recognized
from harness.instruments.traces.segments import STATE_NAMES, State
from harness.instruments.traces.trace import EventKind


class TraceTable(NamedTuple):
    """A table of the breakdown: its title, column heads and rows; the first column is text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


LEAST_NAME = 24  # characters of the first column, at least
GAP = "  "


def terminal_width() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    return max(shutil.get_terminal_size((80, 24)).columns, 2 * LEAST_NAME)


def fitted(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table as lines of a width; columns that do not fit follow below, with the first one again."""
    heads = [head[0], *(_narrow(name, [row[i] for row in rows]) for i, name in enumerate(head) if i)]
    sizes = [
        max(len(line) for cell in (heads[i], *(row[i] for row in rows)) for line in cell.split("\n"))
        for i in range(len(head))
    ]
    lines: list[str] = []
    for columns in _blocks(sizes, width):
        taken = sum(sizes[i] + len(GAP) for i in columns)
        first = min(sizes[0], width - taken)
        table = [[shortened_name(row[0], first), *(row[i] for i in columns)] for row in (heads, *rows)]
        lines += aligned(table)
    return lines


def shortened_name(name: str, length: int) -> str:
    """Return a short name: without parameters, then the middle of template arguments, then of all."""
    if len(name) > length:
        name, _ = _without(name, "()")
    if len(name) > length:
        name, arguments = _without(name, "<>")
        name = name.replace("<…>", f"<{shortened(arguments, max(length - len(name) + 1, 3))}>", 1)
        name = name if len(name) <= length else _without(name, "<>")[0]
    return shortened(name, length)


def _without(name: str, brackets: str) -> tuple[str, str]:
    """Return a name with an ellipsis for what its outermost brackets contain, and that of the first ones."""
    opening, closing = brackets[0], brackets[1]
    shown, contents, depth = list[str](), list[str](), 0
    for letter in name:
        depth -= int(letter == closing and depth > 0)
        if depth:
            contents[-1] += letter
        else:
            shown.append(letter)
        if letter == opening:
            if not depth:
                shown.append("…")
                contents.append("")
            depth += 1
    return "".join(shown), contents[0] if contents else ""


def _narrow(name: str, cells: Sequence[str]) -> str:
    """Return a head in lines that are no wider than its widest word or cell."""
    width = max([10, *map(len, cells), *map(len, name.split())])
    return "\n".join(textwrap.wrap(name, width)) or name


def _blocks(sizes: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the columns after the first that fit next to one another."""
    room = width - min(LEAST_NAME, sizes[0])
    block: list[int] = []
    for i in range(1, len(sizes)):
        if block and sum(sizes[j] + len(GAP) for j in [*block, i]) > room:
            yield block
            block = []
        block.append(i)
    yield block


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, the first to the left; a cell may have several lines."""
    split = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for row in split for line in row[i]) for i in range(len(rows[0]))]
    lines = []
    for row in split:
        for first, *others in zip_longest(*row, fillvalue=""):
            shown = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            lines.append(GAP.join([first.ljust(widths[0]), *shown]).rstrip())
    return lines


ROWS = 15  # rows of work that are shown


def tables(of: Breakdown) -> list[TraceTable]:
    """Return shares, factors, ranks, the largest parts and communication on a device, names whole."""
    shares = [(one.name, _ms(one.mean_s), _percent(one.mean_s / of.step_s)) for one in of.shares]
    shares.append(("sum", _ms(of.step_s), "100.0"))
    factors = [(of.factors.base_name, "", _ms(of.factors.base_s))]
    factors += [(one.name, f"× {one.value:.3f}", _ms(one.time_s)) for one in of.factors.factors]
    return [
        TraceTable("Shares of the step", ("Share", "ms", "%"), shares),
        TraceTable("Factors to the observed time", ("Factor", "", "ms"), factors),
        *([_rank_table(of)] if len(of.ranks) > 1 else []),
        _work_table(of),
        *([_communication_table(of)] if of.ranks[0].activity.on_device.under_way.any() else []),
    ]


def _rank_table(of: Breakdown) -> TraceTable:
    states = [state for state in State if of.share_of(state) > 0]
    rows = [
        (f"rank {one.rank}", _ms(one.step_s), *(_percent(one.share_of(state)) for state in states))
        for one in of.ranks
    ]
    return TraceTable("Ranks", ("Rank", "ms", *(f"{STATE_NAMES[state]}, %" for state in states)), rows)


def _work_table(of: Breakdown) -> TraceTable:
    """Return the largest parts by phase, layer and operation; idle time precedes its operation."""
    rows = [
        (
            " ".join(filter(None, (one.phase, one.layer, one.operation))) or "after the last kernel",
            STATE_NAMES[one.state],
            _percent(one.mean_s / of.step_s),
        )
        for one in of.work[:ROWS]
    ]
    return TraceTable("Largest parts", ("Work", "State", "%"), rows)


def _communication_table(of: Breakdown) -> TraceTable:
    """Return the first rank's kernels that communicate and how each was recognized; times are summed."""
    rank = of.ranks[0]
    trace, how = rank.activity.trace, rank.activity.on_device.recognized_by
    events = np.flatnonzero((how > 0) & np.isin(rank.activity.step_at(trace.start_ns), rank.chosen))
    times: dict[tuple[str, str], list[int]] = {}
    for event in events.tolist():
        key = trace.name(event), _known_by(rank.activity, event)
        times.setdefault(key, []).append(int(trace.end_ns[event] - trace.start_ns[event]))
    rows = [
        (name, known, f"{len(one) / len(rank.chosen):.4g}", _ms(sum(one) / 1e9 / len(rank.chosen)))
        for (name, known), one in sorted(times.items(), key=lambda item: -sum(item[1]))[:ROWS]
    ]
    of_rank = f", rank {rank.rank}" if len(of.ranks) > 1 else ""
    return TraceTable(f"Communication on the device{of_rank}", ("Kernel", "Known by", "per step", "ms"), rows)


def _known_by(activity: Activity, event: int) -> str:
    how = int(activity.on_device.recognized_by[event])
    family = recognized(activity.trace.name(event)).family if how == BY_NAME else None
    known = f"name, {family.library}" if family else HOW[how]
    return f"{known} (both)" if activity.fused[event] else known


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


class PathPart(NamedTuple):
    """A time in which one rank is on the critical path; `rank` is its position, times are aligned."""

    rank: int
    start_ns: int
    end_ns: int


def critical_path(of: Breakdown, step: int) -> tuple[PathPart, ...]:
    """Return the critical path of a step (by its place among `of.step_numbers`), in order of time.

    It starts with the rank that ends last and goes back in time. Where that rank waits for another, the path
    goes on with the other one from the end of the wait.
    """
    chosen = [one.activity.edges_ns[one.chosen[step]] for one in of.ranks]
    edges = [
        (one - offset_ns).tolist() for one, offset_ns in zip(chosen, of.matching.offsets_ns, strict=True)
    ]
    waits = [_waits_at(of, rank, step) for rank in range(len(of.ranks))]
    rank = max(range(len(of.ranks)), key=lambda one: edges[one][1])
    at_ns, found = edges[rank][1], []
    position = {one.rank: i for i, one in enumerate(of.ranks)}
    while True:
        earlier = [wait for wait in waits[rank] if wait[0] <= at_ns and wait[1] in position]
        start_ns = max((wait[0] for wait in earlier), default=edges[rank][0])
        if start_ns < at_ns:
            found.append(PathPart(rank, start_ns, at_ns))
        if not earlier:
            return tuple(reversed(found))
        at_ns, slower = max(earlier)
        waits[rank] = [wait for wait in earlier if wait[0] < at_ns]
        rank = position[slower]


def _waits_at(of: Breakdown, rank: int, step: int) -> list[tuple[int, int]]:
    """Return when each wait of a rank in the step ends, and for which rank it waited."""
    cut = of.ranks[rank].segments
    chosen = (cut.step == of.ranks[rank].chosen[step]) & (cut.state == State.WAITING_FOR_RANK)
    ends_ns = cut.end_ns[chosen] - of.matching.offsets_ns[rank]
    return list(zip(ends_ns.tolist(), np.asarray(cut.slower_rank[chosen]).tolist(), strict=True))


OWN_TRACKS = {
    **{state: STATE_NAMES[state] for state in (State.COMPUTING, State.COMMUNICATION, State.COPYING)},
    **dict.fromkeys((State.PREPARING, State.CALLING, State.IDLE), "gaps"),
    **dict.fromkeys((State.WAITING_FOR_DATA, State.WAITING_FOR_RANK), "waiting"),
}
"""State -> the track that shows it."""

PER_RANK = 1_000_000  # process numbers of one rank: that of the rank times this, plus a process


def write_perfetto(of: Breakdown, path: Path) -> None:
    """Write the ranks of a breakdown, compressed where the path ends with .gz; raises OSError."""
    origin_ns = min(int(one.activity.trace.start_ns[0]) for one in of.ranks)
    encode = msgspec.json.Encoder().encode
    with gzip.open(path, "wb", compresslevel=4) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        each = zip(of.ranks, of.matching.offsets_ns, strict=True)
        tracks = [_events(rank, offset_ns + origin_ns) for rank, offset_ns in each]
        tracks += [_path_track(of, origin_ns)] if len(of.ranks) > 1 else []
        for number, event in enumerate(chain.from_iterable(tracks)):
            file.write((b",\n" if number else b"") + encode(event))
        file.write(b"\n]}\n")


def _events(rank: RankBreakdown, offset_ns: int) -> Iterator[dict[str, Any]]:
    yield from _own_tracks(rank, offset_ns)
    trace = rank.activity.trace
    processes: dict[str, int] = {}
    for i, track in enumerate(trace.tracks):
        process = processes.setdefault(track.process, len(processes) + 1)
        pid = rank.rank * PER_RANK + process
        yield from _names(pid, f"rank {rank.rank}: {track.process}", i, track.name or track.thread)
    columns = (trace.start_ns, trace.end_ns, trace.name_of, trace.track_of, trace.kind)
    for start_ns, end_ns, name, track_of, kind in zip(*(c.tolist() for c in columns), strict=True):
        pid = rank.rank * PER_RANK + processes[trace.tracks[track_of].process]
        category = EventKind(kind).name.lower()
        yield _shown(trace.names[name], category, pid, track_of, start_ns - offset_ns, end_ns - start_ns)


def _shown(name: str, category: str, pid: int, tid: int, start_ns: int, duration_ns: int) -> dict[str, Any]:
    """Return a complete event; times in microseconds."""
    times = {"ts": start_ns / 1000, "dur": duration_ns / 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times}


def _own_tracks(rank: RankBreakdown, offset_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the states of a rank as events of tracks of their own."""
    tracks = {name: i for i, name in enumerate(dict.fromkeys(OWN_TRACKS.values()))}
    for name, i in tracks.items():
        yield from _names(rank.rank * PER_RANK, f"rank {rank.rank}: breakdown", i, name)
    cut, activity = rank.segments, rank.activity
    columns = (cut.start_ns, cut.end_ns, cut.state, cut.event, cut.slower_rank)
    for start_ns, end_ns, number, event, slower in zip(*(c.tolist() for c in columns), strict=True):
        state = State(number)
        of = f"rank {slower}" if state == State.WAITING_FOR_RANK else activity.operation_names(event)
        name = f"{STATE_NAMES[state]}: {of}" if of else STATE_NAMES[state]
        pid, tid = rank.rank * PER_RANK, tracks[OWN_TRACKS[state]]
        yield _shown(name, "breakdown", pid, tid, start_ns - offset_ns, end_ns - start_ns)


def _path_track(of: Breakdown, origin_ns: int) -> Iterator[dict[str, Any]]:
    """Yield a track of its own with the rank that the others depend on at each time."""
    pid = (1 + max(one.rank for one in of.ranks)) * PER_RANK
    yield from _names(pid, "critical path", 0, "critical path")
    for step in range(len(of.step_numbers)):
        for rank, start_ns, end_ns in critical_path(of, step):
            name = f"rank {of.ranks[rank].rank}"
            yield _shown(name, "critical path", pid, 0, start_ns - origin_ns, end_ns - start_ns)


def _names(pid: int, title: str, thread: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}
