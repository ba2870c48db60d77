"""Read the Chrome traces that Kineto writes for torch.profiler, of several versions and vendors.

The parser skips what no column needs. Times are parsed as decimal numbers: microseconds since the epoch with
three decimals do not fit into a float64.
"""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness.instruments.process import no_collection
from harness.instruments.traces import TraceError, shortened
from harness.instruments.traces.trace import (
    HOW_TO_RECORD,
    ON_DEVICE,
    CollectiveCall,
    EventKind,
    RankTrace,
    Track,
    is_unread,
    kind_of,
    kind_of_kernel,
)

SUFFIXES = (".json", ".json.gz")

MOST_us = Decimal(2) ** 52  # 142 years, which int64 has room for in nanoseconds
_Plain = str | int | float | None
NUMBERS = (Decimal, int)  # types of a number that was read; no bool
LARGEST = 2**63  # whole numbers are below it
_NO_RAW = msgspec.Raw(b"")


class _Args(msgspec.Struct, gc=False):
    correlation: Any = None
    external_id: Any = msgspec.field(default=None, name="External id")
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=None, name="Seq")
    elements: Any = msgspec.field(default=None, name="In msg nelems")
    dims: msgspec.Raw = msgspec.field(default=_NO_RAW, name="Input Dims")
    grid: msgspec.Raw = _NO_RAW
    device: _Plain = None
    stream: _Plain = None
    name: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: _Plain = ""
    name: _Plain = ""
    cat: _Plain = ""
    pid: _Plain = ""
    tid: _Plain = ""
    ts: Any = None
    dur: Any = None
    args: _Args | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event] | None = None
    distributedInfo: Any = None
    deviceProperties: Any = None
    baseTimeNanoseconds: Any = None
    host_name: Any = None


def read_traces(path: Path) -> tuple[RankTrace, ...]:
    """Return the traces of a file, or those of a folder in the order of their ranks; raises TraceError."""
    if not path.is_dir():
        return (read_trace(path),)
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise TraceError(f"{path}: no trace ({' or '.join(SUFFIXES)}) in this folder; {HOW_TO_RECORD}")
    return together([read_trace(file) for file in files])


def together(traces: list[RankTrace]) -> tuple[RankTrace, ...]:
    """Return the traces in the order of their ranks; raises TraceError where they are not of one run."""
    traces = sorted(traces, key=lambda trace: trace.rank)
    first = traces[0]
    for before, trace in pairwise(traces):
        if trace.world_size != first.world_size:
            raise TraceError(
                f"{trace.path}: has {trace.world_size} ranks, {first.path} has {first.world_size}: "
                "these are not of one run; give the traces of one run alone"
            )
        if trace.rank == before.rank:
            raise TraceError(
                f"{trace.path}: rank {trace.rank} is there twice, also as {before.path}; "
                "give one trace per rank"
            )
    latest_start = max(traces, key=lambda trace: int(trace.start_ns[0]))
    earliest_end = min(traces, key=lambda trace: int(trace.end_ns.max()))
    if latest_start.start_ns[0] >= earliest_end.end_ns.max():
        raise TraceError(
            f"{latest_start.path}: begins after {earliest_end.path} has ended: these ranks do not belong "
            "together, or a clock is wrong; record all ranks in the same steps"
        )
    return tuple(traces)


def read_trace(path: Path) -> RankTrace:
    """Return the trace of one rank, from .json or .json.gz; raises TraceError."""
    with no_collection():  # a million small objects, none in a cycle
        return _columns(path, _parsed(path, _content(path)))


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder; expected a trace (.json or .json.gz)")
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{path}: the gzip file is truncated or damaged; copy or record it again") from None
    except OSError as error:
        raise TraceError(f"{path}: no trace can be read: {error.strerror}; {HOW_TO_RECORD}") from None
    if not content.strip():
        raise TraceError(f"{path}: is empty; {HOW_TO_RECORD}")
    return content


def _parsed(path: Path, content: bytes) -> _Document:
    first = content.lstrip()[:1]
    if first != b"{":
        other = "not JSON but perhaps a report of Nsight or another tool"
        other = "a list of events without a header, of another tool" if first == b"[" else other
        raise TraceError(f"{path}: is {other}; {HOW_TO_RECORD}")
    try:
        return msgspec.json.Decoder(_Document, float_hook=Decimal).decode(content)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: is not a trace of torch.profiler ({error}); {HOW_TO_RECORD}") from None
    except msgspec.DecodeError as error:
        cut = "truncated" in str(error)
        state = "is truncated; copy it again, or" if cut else f"is not valid JSON ({error});"
        raise TraceError(f"{path}: {state} {HOW_TO_RECORD}") from None
    except RecursionError:
        raise TraceError(f"{path}: is nested too deeply to be a trace; {HOW_TO_RECORD}") from None
    except UnicodeDecodeError:
        return _parsed(path, content.decode(errors="replace").encode())


def _columns(path: Path, document: _Document) -> RankTrace:
    if document.traceEvents is None:
        raise TraceError(f"{path}: has no traceEvents, so it is of another tool; {HOW_TO_RECORD}")
    table = _Table(path)
    for event in _taken(document):
        table.add(event)
    if not table.rows:
        raise TraceError(f"{path}: has no operators and no kernels; {HOW_TO_RECORD}")
    rank, world_size, groups = _distributed(path, document.distributedInfo)
    base_ns = _integer(document.baseTimeNanoseconds, 0)
    if abs(base_ns) > MOST_us * 1000:
        raise TraceError(f"{path}: baseTimeNanoseconds is out of range; record the trace again")
    rows = np.frombuffer(table.rows, np.int64).reshape(-1, len(COLUMNS))
    order = np.lexsort((-rows[:, 1], rows[:, 0]))
    table_T = np.ascontiguousarray(rows[order].T)
    table_T[:2] += base_ns
    place = np.argsort(order)
    tracks = [(_text(process), _text(thread)) for process, thread in table.tracks]
    trace = RankTrace(
        path=path,
        rank=rank,
        world_size=world_size,
        host=_text(document.host_name),
        devices=tuple(_text(one.get("name")) for one in _dicts(document.deviceProperties)),
        names=tuple(map(_text, table.names)),
        tracks=tuple(Track(*track, table.track_names.get(track, "")) for track in tracks),
        **dict(zip(COLUMNS, table_T, strict=True)),
        collectives={int(place[at]): call for at, call in table.collectives.items()},
        process_groups=groups,
        unread=frozenset(table.unread),
    )
    _check(trace)
    return trace


def _taken(document: _Document) -> Iterator[_Event]:
    events = document.traceEvents or []
    document.traceEvents = None
    events.reverse()
    while events:
        yield events.pop()


def _check(trace: RankTrace) -> None:
    backwards = np.flatnonzero(trace.end_ns < trace.start_ns)
    if len(backwards):
        name = _shown(trace.name(int(backwards[0])))
        raise TraceError(
            f"{trace.path}: {name} ends before it starts: a clock runs backwards; record the trace again"
        )
    if not np.any(trace.of_kind(EventKind.OP, EventKind.KERNEL)):
        raise TraceError(f"{trace.path}: has no operators and no kernels; {HOW_TO_RECORD}")


COLUMNS = (
    *("start_ns", "end_ns", "name_of", "track_of", "kind"),
    *("correlation", "external_id", "sequence", "shape"),
)
"""What the table has of each event, fields of `RankTrace`."""


class _Table:
    """The events of a trace while it is read; `rows` has the columns of one event after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = array("q")
        self.names: dict[Any, int] = {}
        self.tracks: dict[tuple[Any, Any], int] = {}
        self.track_names: dict[tuple[str, str], str] = {}
        self.shapes: dict[bytes, int] = {}
        self.collectives: dict[int, CollectiveCall] = {}
        self.unread: set[str] = set()

    def add(self, event: _Event) -> None:
        args = event.args
        if event.ph != "X":
            if event.ph == "M" and event.name == "thread_name" and args is not None:
                self.track_names[_text(event.pid), _text(event.tid)] = _text(args.name)
            return
        if event.ts is None:
            return
        category, name = _text(event.cat), event.name
        kind = kind_of(category)
        if kind == EventKind.KERNEL:
            kind = kind_of_kernel(_text(name))
        start_ns = self._nanoseconds(event, event.ts)
        end_ns = start_ns if event.dur is None else start_ns + self._nanoseconds(event, event.dur)
        process, thread = event.pid, event.tid
        correlation = external_id = sequence = shape = -1
        if args is not None:
            if kind == EventKind.OTHER and args.stream is not None and is_unread(category):
                self.unread.add(category)
            if kind in ON_DEVICE and args.stream is not None:
                process, thread = (process if args.device is None else args.device), args.stream
            if args.collective or args.group or args.elements is not None:
                self.collectives[len(self.rows) // len(COLUMNS)] = _collective(args)
            correlation, external_id = _integer(args.correlation, -1), _integer(args.external_id, -1)
            sequence = _integer(args.sequence, -1)
            dims = bytes(args.grid if kind == EventKind.KERNEL else args.dims)
            shape = self.shapes.setdefault(dims, len(self.shapes)) if dims else -1
        name_of = self.names.setdefault(name, len(self.names))
        track_of = self.tracks.setdefault((process, thread), len(self.tracks))
        self.rows.extend(
            (start_ns, end_ns, name_of, track_of, kind, correlation, external_id, sequence, shape)
        )

    def _nanoseconds(self, event: _Event, time_us: Any) -> int:
        """Return a time in nanoseconds; raises TraceError where it is no number or out of range."""
        time = f"{self.path}: a time of {_shown(event.name)} is"
        if type(time_us) not in NUMBERS:
            shown = shortened(repr(time_us), 40)
            raise TraceError(f"{time} {shown}, which is not a number of microseconds; {HOW_TO_RECORD}")
        if not -MOST_us < time_us < MOST_us:
            shown = shortened(str(time_us), 40)
            raise TraceError(f"{time} out of range ({shown} microseconds); record the trace again")
        return int(time_us * 1000)


def _collective(args: _Args) -> CollectiveCall:
    described = _text(args.description)
    group = described if described not in ("", "undefined") else _text(args.group)
    return CollectiveCall(_text(args.collective), group, _text(args.ranks), _integer(args.seq, -1))


def _distributed(path: Path, info: Any) -> tuple[int, int, dict[str, tuple[int, ...]]]:
    """Return rank, world size and process groups; of a trace without them, from the file's name."""
    if isinstance(info, dict) and "rank" in info:
        groups = _dicts(info.get("pg_config"))
        names = {_text(one.get("pg_desc") or one.get("pg_name")): _ranks(one.get("ranks")) for one in groups}
        return _integer(info["rank"], 0), max(_integer(info.get("world_size"), 1), 1), names
    found = re.search(r"rank[-_]?(\d+)", path.name)
    return (int(found[1]) if found else 0), 1, {}


def _ranks(value: Any) -> tuple[int, ...]:
    return tuple(one for one in value if isinstance(one, int)) if isinstance(value, list) else ()


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _integer(value: Any, otherwise: int) -> int:
    """Return a whole number that int64 has room for, else `otherwise`."""
    if value is None or (isinstance(value, Decimal) and not abs(value) < LARGEST):
        return otherwise
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if -LARGEST < number < LARGEST else otherwise


def _shown(name: Any) -> str:
    return shortened(_text(name), 60)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
