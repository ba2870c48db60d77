"""What techniques gained in this project's own records, in words for `harness.profile`'s sentence."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.code_fingerprint import ROOT

RECORDED = ROOT / "results" / "reference"
"""Committed runs; a folder of each has effects.csv."""


class RecordedGain(NamedTuple):
    """One comparison of the time with a technique and without it: below 1 is faster."""

    folder: str
    ratio: float
    origin: str


def gains(techniques: Iterable[str], folder: Path = RECORDED) -> dict[str, str]:
    """Return what each technique gained, by its name; those without a comparison of times are left out.

    All comparisons count, also those in which a technique costs time: the text has their range.
    """
    wanted = set(techniques)
    found: dict[str, list[RecordedGain]] = {}
    for file in sorted(folder.glob("*/effects.csv")):
        with file.open(newline="") as rows:
            for row in csv.DictReader(rows):
                technique = row["variant"].partition(".")[0]
                if technique in wanted and row["metric"] == "time":
                    gain = RecordedGain(file.parent.name, float(row["ratio"]), row["origin"])
                    found.setdefault(technique, []).append(gain)
    return {technique: _words(every) for technique, every in found.items()}


def _words(every: list[RecordedGain]) -> str:
    ratios = sorted(one.ratio for one in every)
    range_ = f"{ratios[0]:.2f}" if len(ratios) == 1 else f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    count = "1 comparison" if len(every) == 1 else f"{len(every)} comparisons"
    origins, folders = sorted({one.origin for one in every}), sorted({one.folder for one in every})
    return (
        f"{range_} times the baseline's time in {count}, {' and '.join(origins)}, "
        f"results/reference/{', '.join(folders)}"
    )
