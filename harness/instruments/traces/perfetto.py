"""Export ranks for Perfetto: their events, the states of each rank, and the critical path over ranks.

The critical path says which rank the others depend on at each time of a step. The file is in Chrome's JSON
format, which ui.perfetto.dev and chrome://tracing open. Clocks are aligned as in the breakdown.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.segments import STATE_NAMES, State
from harness.instruments.traces.trace import EventKind


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
    edges = [_edges(of, rank, step) for rank in range(len(of.ranks))]
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


def _edges(of: Breakdown, rank: int, step: int) -> tuple[int, int]:
    one = of.ranks[rank]
    chosen = one.activity.steps[one.chosen[step]]
    offset_ns = of.matching.offsets_ns[rank]
    return chosen.start_ns - offset_ns, chosen.end_ns - offset_ns


def _waits_at(of: Breakdown, rank: int, step: int) -> list[tuple[int, int]]:
    """Return when each wait of a rank in the step ends, and for which rank it waited."""
    one = of.ranks[rank]
    cut = one.segments
    chosen = (cut.step == one.chosen[step]) & (cut.state == State.WAITING_FOR_RANK)
    ends_ns = cut.end_ns[chosen] - of.matching.offsets_ns[rank]
    return list(zip(ends_ns.tolist(), np.asarray(cut.slower_rank[chosen]).tolist(), strict=True))


OWN_TRACKS = {
    State.COMPUTING: "computing",
    State.COMMUNICATION: "exposed communication",
    State.COPYING: "copies",
    State.PREPARING: "gaps",
    State.CALLING: "gaps",
    State.WAITING_FOR_DATA: "waiting",
    State.WAITING_FOR_RANK: "waiting",
    State.IDLE: "gaps",
}
"""State -> the track that shows it."""

PER_RANK = 1_000_000
"""Process numbers of one rank: that of the rank times this, plus a process."""


def write_perfetto(of: Breakdown, path: Path) -> None:
    """Write the ranks of a breakdown, compressed where the path ends with .gz; raises OSError."""
    origin_ns = min(int(one.activity.trace.start_ns[0]) for one in of.ranks)
    encode = msgspec.json.Encoder().encode
    with gzip.open(path, "wb", compresslevel=4) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        before = b""
        for rank, offset_ns in zip(of.ranks, of.matching.offsets_ns, strict=True):
            for event in _events(rank, offset_ns + origin_ns):
                file.write(before + encode(event))
                before = b",\n"
        if len(of.ranks) > 1:
            for event in _path_track(of, origin_ns):
                file.write(before + encode(event))
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
        yield {
            "ph": "X",
            "name": trace.names[name],
            "cat": EventKind(kind).name.lower(),
            "pid": rank.rank * PER_RANK + processes[trace.tracks[track_of].process],
            "tid": track_of,
            "ts": (start_ns - offset_ns) / 1000,
            "dur": (end_ns - start_ns) / 1000,
        }


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
        yield {
            "ph": "X",
            "name": f"{STATE_NAMES[state]}: {of}" if of else STATE_NAMES[state],
            "cat": "breakdown",
            "pid": rank.rank * PER_RANK,
            "tid": tracks[OWN_TRACKS[state]],
            "ts": (start_ns - offset_ns) / 1000,
            "dur": (end_ns - start_ns) / 1000,
        }


def _path_track(of: Breakdown, origin_ns: int) -> Iterator[dict[str, Any]]:
    """Yield a track of its own with the rank that the others depend on at each time."""
    pid = (1 + max(one.rank for one in of.ranks)) * PER_RANK
    yield from _names(pid, "critical path", 0, "critical path")
    for step in range(len(of.step_numbers)):
        for part in critical_path(of, step):
            yield {
                "ph": "X",
                "name": f"rank {of.ranks[part.rank].rank}",
                "cat": "critical path",
                "pid": pid,
                "tid": 0,
                "ts": (part.start_ns - origin_ns) / 1000,
                "dur": (part.end_ns - part.start_ns) / 1000,
            }


def _names(pid: int, title: str, thread: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}
