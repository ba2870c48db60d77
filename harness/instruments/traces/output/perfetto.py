"""Export ranks for Perfetto: their events, and tracks of ours with the states of each rank.

Chrome's JSON format, which ui.perfetto.dev and chrome://tracing open. Clocks are aligned as in the breakdown.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.reading.trace import EventKind
from harness.instruments.traces.segments import STATE_NAMES, State

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
        file.write(b"\n]}\n")


def _events(rank: RankBreakdown, offset_ns: int) -> Iterator[dict[str, Any]]:
    yield from _own_tracks(rank, offset_ns)
    trace = rank.activity.trace
    processes: dict[str, int] = {}
    for i, track in enumerate(trace.tracks):
        process = processes.setdefault(track.process, len(processes) + 1)
        yield from _names(
            rank.rank, process, f"rank {rank.rank}: {track.process}", i, track.name or track.thread
        )
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
        yield from _names(rank.rank, 0, f"rank {rank.rank}: breakdown", i, name)
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


def _names(rank: int, process: int, title: str, thread: int, name: str) -> Iterator[dict[str, Any]]:
    pid = rank * PER_RANK + process
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}
