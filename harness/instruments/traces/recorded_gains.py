"""What techniques gained in this project's own records, for the sentence."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.instruments.traces.output.sentence import TechniqueGain
from harness.records import measurement, record_from_json

RECORDED = Path(__file__).parents[3] / "results" / "reference"
"""Committed runs; a folder of each has effects.csv and records.jsonl."""

OVER_NETWORK, WITHOUT_NETWORK = "packets", "without network"
"""Methods of a step's time: over an emulated network, and the same step without it."""


class RecordedGain(NamedTuple):
    """One comparison of the time with a technique and without it: below 1 is faster.

    `hidden` is the share that it hid of the time which the network adds to the baseline; None if unknown.
    """

    folder: str
    ratio: float
    origin: str
    hidden: float | None


def gains(techniques: Iterable[str], folder: Path = RECORDED) -> dict[str, TechniqueGain]:
    """Return what each technique gained, by its name; those without a comparison of times are left out.

    All comparisons count, also those in which a technique costs time: the text has their range.
    """
    wanted = set(techniques)
    found: dict[str, list[RecordedGain]] = {}
    for file in sorted(folder.glob("*/effects.csv")):
        rows = [row for row in _rows(file) if row["metric"] == "time" and _technique(row) in wanted]
        over_network = any(row["method"] == OVER_NETWORK for row in rows)
        without_s = _without_network_s(file.with_name("records.jsonl")) if over_network else {}
        for row in rows:
            hidden = _hidden(row, without_s.get(row["workload"]))
            gain = RecordedGain(file.parent.name, float(row["ratio"]), row["origin"], hidden)
            found.setdefault(_technique(row), []).append(gain)
    return {technique: _gain(every) for technique, every in found.items()}


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


def _technique(row: Mapping[str, str]) -> str:
    return row["variant"].partition(".")[0]


def _without_network_s(file: Path) -> dict[str, float]:
    """Return the median time of the baseline's step without the network, by workload; {} without the file."""
    if not file.is_file():
        return {}
    times_s: dict[str, list[float]] = {}
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            record = record_from_json(json.loads(line))
            time = measurement(record, "time", WITHOUT_NETWORK)
            if record.cell.optimization == "baseline" and time is not None:
                times_s.setdefault(record.cell.workload, []).extend(time.samples)
    return {workload: median(every) for workload, every in times_s.items()}


def _hidden(row: Mapping[str, str], without_s: float | None) -> float | None:
    if without_s is None or row["method"] != OVER_NETWORK:
        return None
    baseline_s = float(row["baseline_value"])
    if baseline_s <= without_s:
        return None
    return (baseline_s - float(row["value"])) / (baseline_s - without_s)


def _gain(every: list[RecordedGain]) -> TechniqueGain:
    hidden = [one.hidden for one in every if one.hidden is not None]
    shares = _range([100 * one for one in hidden], 0) if hidden else ""
    texts = [f"hid {shares} % of what an emulated network added in {_count(hidden)}"] if hidden else []
    texts.append(f"{_range([one.ratio for one in every], 2)} times the baseline's time in {_count(every)}")
    origins, folders = sorted({one.origin for one in every}), sorted({one.folder for one in every})
    words = f"{', '.join(texts)}, {' and '.join(origins)}, results/reference/{', '.join(folders)}"
    return TechniqueGain(words, min(hidden) if len(hidden) == len(every) else None)


def _count(comparisons: Sized) -> str:
    return "1 comparison" if len(comparisons) == 1 else f"{len(comparisons)} comparisons"


def _range(values: list[float], digits: int) -> str:
    ends = [f"{end:.{digits}f}" for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
