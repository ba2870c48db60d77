"""Records of a suite as figures that can be looked up, beneath every table and every drawing of a report.

Plain dictionaries: a report asks one figure at a time. `harness.report.tidy` gives them all as a table.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from harness.records import Record, Status

Where = Mapping[str, Any]
"""Which cells: `workload`, `optimization` or `method` to a pattern or a list of them (`fsdp*`, `!zero*`); any
other key is a field of the workload and its value."""


class Figure(NamedTuple):
    """One metric by one method in one workload and variant: the median over all samples of all repeats.

    `least` and `most` are the ends of those samples, `mean` is their mean.
    """

    workload: str
    optimization: str
    metric: str
    method: str
    unit: str
    origin: str
    value: float
    cell: str
    least: float = math.nan
    most: float = math.nan
    mean: float = math.nan


class Frame:
    """All figures and all cells of one suite, in an order that does not depend on that of the records."""

    def __init__(self, records: Sequence[Record], order: Mapping[str, Sequence[str]]) -> None:
        """`order`: for `workload`, `optimization`, `method` the names to put first."""
        self._order = {key: {name: i for i, name in enumerate(names)} for key, names in order.items()}
        self.records = sorted(records, key=self._place)
        self.cells: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            self.cells.setdefault((record.cell.workload, record.cell.optimization), []).append(record)
        self.figures = self._gather()
        self._first: dict[tuple[str, str, str], Figure] = {}
        for place, figure in sorted(self.figures.items(), key=lambda one: self._rank("method", one[0][3])):
            self._first.setdefault(place[:3], figure)

    def get(self, workload: str, optimization: str, metric: str, method: str) -> Figure | None:
        """The figure, or None where no cell has it."""
        return self.figures.get((workload, optimization, metric, method))

    def first(self, workload: str, optimization: str, metric: str) -> Figure | None:
        """The first figure of `metric` in a cell, in the report's order of methods."""
        return self._first.get((workload, optimization, metric))

    def values(self, key: str, where: Where, metric: str = "") -> list[str]:
        """The values of `key` among what `where` selects; if `metric` is named, those with a figure of it."""
        if metric or key == "method":
            found = {
                getattr(figure, key)
                for figure in self.figures.values()
                if (not metric or figure.metric == metric) and self.selects(figure, where)
            }
        else:
            firsts = (records[0] for records in self.cells.values())
            found = {getattr(r.cell, key) for r in firsts if self._cell_fits(r, where)}
        return sorted(found, key=lambda name: self._rank(key, name))

    def select(self, metric: str, where: Where) -> list[Figure]:
        """The figures of `metric` that `where` selects, in order."""
        return [f for f in self.figures.values() if f.metric == metric and self.selects(f, where)]

    def selects(self, figure: Figure, where: Where) -> bool:
        """Whether `where` selects the figure."""
        if "method" in where and not _fits(figure.method, where["method"]):
            return False
        return self._cell_fits(self.cells[figure.workload, figure.optimization][0], where)

    def reason(self, workload: str, optimization: str, metric: str, method: str) -> tuple[str, str]:
        """In a word and in a sentence, why there is no such figure."""
        records = self.cells.get((workload, optimization))
        if not records:
            return "not run", f"{optimization} on {workload}: no record"
        bad = next((r for r in records if r.status != Status.OK), None)
        if bad is not None:
            return bad.status.replace("_", " "), f"{optimization} on {workload}: {why(bad)}"
        told = self.remark(workload, optimization, metric) or self.remark(workload, optimization, method)
        what = f"{metric} by {method}" if method else metric
        return "–", told or f"{what} was not recorded for {optimization}"

    def remark(self, workload: str, optimization: str, about: str) -> str:
        """What the suite remarked on a metric or method of a cell, by name and a colon; empty if nothing."""
        texts = (text for r in self.cells.get((workload, optimization), ()) for text in r.notes)
        return next((text for text in texts if about and text.startswith(f"{about}:")), "")

    def condition(self, workload: str, optimization: str, name: str) -> str:
        """Under which condition a cell stands, empty where it does not say."""
        records = self.cells.get((workload, optimization))
        return records[0].conditions.get(name, "") if records else ""

    def field(self, workload: str, name: str) -> float | None:
        """A field of the workload that is a number above zero; None where it has none."""
        of_it = (r for r in self.records if r.cell.workload == workload)
        value = next((r.cell.config.get("workload", {}).get(name) for r in of_it), None)
        return float(value) if isinstance(value, int | float) and value > 0 else None

    def _gather(self) -> dict[tuple[str, str, str, str], Figure]:
        found: dict[tuple[str, str, str, str], Figure] = {}
        for (workload, optimization), records in self.cells.items():
            samples: dict[tuple[str, str], list[float]] = {}
            header: dict[tuple[str, str], tuple[str, str, str]] = {}
            for record in records:
                if record.status == Status.WRONG_RESULT:
                    continue
                for one in record.measurements:
                    key = (one.metric, one.method)
                    header.setdefault(key, (one.unit, one.origin, record.cell.id))
                    if header[key][:2] == (one.unit, one.origin):
                        samples.setdefault(key, []).extend(v for v in one.samples if math.isfinite(v))
            for (metric, method), values in samples.items():
                if values:
                    unit, origin, cell = header[metric, method]
                    place = (workload, optimization, metric, method)
                    middle = statistics.median(values)
                    found[place] = Figure(
                        *place, unit, origin, middle, cell, min(values), max(values), statistics.fmean(values)
                    )
        return found

    def _cell_fits(self, record: Record, where: Where) -> bool:
        fields = record.cell.config.get("workload", {})
        for key, wanted in where.items():
            if key in ("workload", "optimization"):
                if not _fits(getattr(record.cell, key), wanted):
                    return False
            elif key != "method" and fields.get(key) != wanted:
                return False
        return True

    def _rank(self, key: str, name: str) -> tuple[int, list[tuple[int, int, str]]]:
        """Names that the report lists stand in its order; all others after them, numbers in them by size."""
        listed = self._order.get(key, {})
        parts = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name) if p]
        return listed.get(name, len(listed)), parts

    def _place(self, record: Record) -> tuple[Any, ...]:
        cell = record.cell
        workload, optimization = (
            self._rank("workload", cell.workload),
            self._rank("optimization", cell.optimization),
        )
        return workload, optimization, cell.repeat, cell.id


def why(record: Record) -> str:
    """How a cell ended and for what reason, in one line."""
    reason = " ".join(record.reason.split())
    return record.status.replace("_", " ") + (f": {reason}" if reason else "")


def _fits(name: str, wanted: Any) -> bool:
    """Whether `name` meets a pattern, or one of several; patterns that begin with `!` refuse."""
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    refused = [p[1:] for p in patterns if p.startswith("!")]
    allowed = [p for p in patterns if not p.startswith("!")] or ["*"]
    return any(fnmatchcase(name, p) for p in allowed) and not any(fnmatchcase(name, p) for p in refused)
