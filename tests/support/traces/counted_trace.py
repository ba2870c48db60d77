"""Count what a trace's device does by a sweep over the ends of its events, without the harness's code."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path

import numpy as np

HOST = ("cpu_op", "operator", "user_annotation", "cuda_runtime", "cuda_driver", "runtime")
HOST_ENDS = ("_runtime", "_driver")
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
KERNELS = ("kernel", "mtia_ccp_events")
ON_DEVICE = ("computing", "communication", "exposed", "copies", "busy")


def events_of(path: Path) -> list[dict]:
    """Return the complete events of a file; numbers with decimals stay exact."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return [one for one in json.loads(content, parse_float=Decimal)["traceEvents"] if one.get("ph") == "X"]


def kind_of(event: dict, communication: str) -> str:
    """Return "computing", "communication", "copies", "host" or "" for what does not count."""
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    if category in COPIES or (category == "mtia_ccp_events" and name.startswith("dma")):
        return "copies"
    if category in KERNELS:
        if category == "mtia_ccp_events" and name in ("event_wait", "event_record"):
            return ""
        return "communication" if communication and re.search(communication, name) else "computing"
    return "host" if category in HOST or category.endswith(HOST_ENDS) else ""


def counted(path: Path, communication: str, between: tuple[int, int] | None = None) -> dict[str, int]:
    """Return nanoseconds of each kind of work, of all events or `between` two times in nanoseconds."""
    intervals: dict[str, list[tuple[int, int]]] = {}
    for event in events_of(path):
        kind = kind_of(event, communication)
        start = int(Decimal(event["ts"]) * 1000)
        if kind:
            intervals.setdefault(kind, []).append((start, start + int(Decimal(event.get("dur", 0)) * 1000)))
    every = [one for of in intervals.values() for one in of]
    begin, end = between or (min(a for a, _ in every), max(b for _, b in every))
    return swept(intervals, begin, end)


def swept(intervals: dict[str, list[tuple[int, int]]], begin: int, end: int) -> dict[str, int]:
    """Return nanoseconds of each kind between two times, by counting what has begun and not ended."""
    at = np.unique([begin, end, *(t for of in intervals.values() for one in of for t in one)])
    at = at[(at >= begin) & (at <= end)]
    length = np.diff(at)
    runs = {
        kind: _running(np.array(intervals.get(kind, []), np.int64).reshape(-1, 2), at)
        for kind in ("computing", "communication", "copies")
    }
    compute, communicate, copy = runs.values()
    found = {
        "computing": compute,
        "communication": communicate,
        "exposed": communicate & ~compute,
        "copies": copy & ~communicate & ~compute,
        "idle": ~(compute | communicate | copy),
    }
    return {name: int(length[mask].sum()) for name, mask in found.items()} | {"span": end - begin}


def _running(intervals: np.ndarray, at: np.ndarray) -> np.ndarray:
    begun = np.searchsorted(np.sort(intervals[:, 0]), at[:-1], side="right")
    ended = np.searchsorted(np.sort(intervals[:, 1]), at[:-1], side="right")
    return begun > ended
