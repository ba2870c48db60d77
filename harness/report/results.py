"""Index the records of a suite, from which tables and figures look values up; write every sample as a row."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from harness.records import Origin, Record, Status, wrong_variants
from harness.report.spec import Spec, Where

CELL = ["workload", "optimization", "repeat", "status", "cell"]
COLUMNS = [*CELL, "metric", "method", "origin", "unit", "sample", "value"]
MACHINE = "machine"


def _cell(record: Record) -> tuple[str, str, int, str, str]:
    cell = record.cell
    return cell.workload, cell.optimization, cell.repeat, str(record.status), cell.id


def samples_table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per sample, in base units and in the order of the records, and its machine's digest."""
    rows = [
        (*_cell(record), one.metric, one.method, str(one.origin), one.unit, sample, value, record.machine)
        for record in records
        for one in record.measurements
        for sample, value in enumerate(one.samples)
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, MACHINE]).astype({"value": "float64"})


def measurements_csv(records: Sequence[Record]) -> str:
    """Return measurements.csv: a row per sample; a cell without a sample has one row with its status."""
    table = samples_table(records)[COLUMNS]
    empty = [_cell(one) for one in records if not any(taken.samples for taken in one.measurements)]
    table = pd.concat([table, pd.DataFrame(empty, columns=CELL)], ignore_index=True) if empty else table
    table = table.astype({"sample": "Int64"})
    table = table.sort_values(["workload", "optimization", "repeat", "cell"], kind="stable")
    return str(table.to_csv(index=False, lineterminator="\n"))


ENGINE = "pyarrow"


def write_measurements(folder: Path, records: Mapping[str, Sequence[Record]]) -> str:
    """Write measurements.parquet, records given by suite, into the folder; return a sentence on it.

    Without pyarrow, which is part of the extra `parquet`, it is measurements.csv.
    """
    tables = [samples_table(own).assign(suite=suite) for suite, own in records.items() if own]
    every = pd.concat(tables, ignore_index=True)
    every = every[["suite", *(name for name in every.columns if name != "suite")]]
    if importlib.util.find_spec(ENGINE) is None:
        path = folder / "measurements.csv"
        every.to_csv(path, index=False)
        return f"Every sample: {path} (as Parquet with pip install 'throughput-harness[parquet]')"
    path = folder / "measurements.parquet"
    every.to_parquet(path, engine="pyarrow", index=False)
    return f"Every sample: {path}"


PLACE = ["workload", "optimization", "metric", "method"]
STATISTICS = ("median", "mean", "min", "max")


class Value(NamedTuple):
    """One metric by one method of one workload and variant: statistics over all samples of all repeats."""

    workload: str
    optimization: str
    metric: str
    method: str
    unit: str
    origin: str
    cell: str
    median: float
    mean: float = math.nan
    min: float = math.nan
    max: float = math.nan
    of_repeats: Mapping[str, tuple[float, float]] = {}  # of each statistic: lowest, highest of repeats


def summarize(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per workload, variant, metric and method, with the columns of `Value`.

    A variant that was wrong in one process has no value in any, but what is calculated of its code; samples
    that are not finite are left out; where repeats differ in unit, origin or machine, those of the first are
    taken.
    """
    table = samples_table(records)
    wrong = wrong_variants(records)
    place = zip(table["workload"], table["optimization"], strict=True)
    right = pd.Series([one not in wrong for one in place], index=table.index, dtype=bool)
    right |= (table["origin"] == Origin.CALCULATED) & (table["status"] != Status.WRONG_RESULT)
    table = table[right & (table["value"].abs() < math.inf)]
    same = ["unit", "origin", MACHINE]
    first = table.groupby(PLACE, sort=False)[same].transform("first")
    table = table[(table[same] == first).all(axis=1)]
    statistics = {name: ("value", name) for name in STATISTICS}
    firsts = {name: (name, "first") for name in ("unit", "origin", "cell")}
    whole = table.groupby(PLACE, sort=False).agg(**firsts, **statistics)
    repeats = table.groupby([*PLACE, "repeat"], sort=False).agg(**statistics).groupby(PLACE, sort=False)
    low, high = (ends.reindex(whole.index).to_dict("list") for ends in (repeats.min(), repeats.max()))
    ranges = [{name: (low[name][row], high[name][row]) for name in STATISTICS} for row in range(len(whole))]
    return whole.reset_index().assign(of_repeats=pd.Series(ranges, dtype=object))


class ResultIndex:
    """All values and all cells of one suite, in an order that does not depend on that of the records."""

    def __init__(
        self,
        records: Sequence[Record],
        order: Mapping[str, Sequence[str]],
        shipped: frozenset[str] | None = None,
    ) -> None:
        """Index the records; `order`: for `workload`, `optimization`, `method` the names to put first.

        `shipped`: the suite's own workloads. The user's come before them, in each table and figure whose
        other conditions they meet. None: no workload is the user's.
        """
        self.own = {one.cell.workload for one in records} - shipped if shipped is not None else set()
        self._order = {key: {name: i for i, name in enumerate(names)} for key, names in order.items()}
        self.records = sorted(records, key=self._place)
        self.cells: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            self.cells.setdefault((record.cell.workload, record.cell.optimization), []).append(record)
        self._wrong = wrong_variants(self.records)
        self.frame = summarize(self.records)
        self.table: dict[tuple[str, str, str, str], Value] = {}
        self._first: dict[tuple[str, str, str], Value] = {}
        self._missing: dict[tuple[str, str, str, str], str] = {}
        self.add(Value(*row) for row in self.frame.itertuples(index=False, name=None))

    def right(self, workload: str, optimization: str) -> list[Record]:
        """Return a variant's records; none where it was wrong in any process, see `wrong_variants`."""
        place = (workload, optimization)
        return [] if place in self._wrong else self.cells.get(place, [])

    def add(self, values: Any) -> None:
        """Take in more values: those derived from the recorded ones."""
        for value in values:
            self.table[value[:4]] = value
        self._first.clear()
        for place, value in sorted(self.table.items(), key=lambda one: self._rank("method", one[0][3])):
            self._first.setdefault(place[:3], value)

    def lacks(self, workload: str, optimization: str, metric: str, method: str, reason: str) -> None:
        """Keep in a sentence why a derived value is missing."""
        self._missing[workload, optimization, metric, method] = reason

    def get(self, workload: str, optimization: str, metric: str, method: str) -> Value | None:
        """Return the value, or None if no cell has it."""
        return self.table.get((workload, optimization, metric, method))

    def first(self, workload: str, optimization: str, metric: str) -> Value | None:
        """Return the first value of `metric` in a cell, in the report's order of methods."""
        return self._first.get((workload, optimization, metric))

    def names(self, key: str, where: Where, metric: str = "") -> list[str]:
        """Return the values of `key` among what `where` selects; with `metric`, those that have it."""
        if metric or key == "method":
            values = (one for one in self.table.values() if not metric or one.metric == metric)
            names = {getattr(one, key) for one in values if self.selects(one, where)}
        else:
            firsts = (records[0] for records in self.cells.values())
            names = {getattr(r.cell, key) for r in firsts if self._cell_fits(r, where)}
        return sorted(names, key=lambda name: self._rank(key, name))

    def select(self, metric: str, where: Where) -> list[Value]:
        """Return the values of `metric` that `where` selects, in order."""
        return [one for one in self.table.values() if one.metric == metric and self.selects(one, where)]

    def selects(self, value: Value, where: Where) -> bool:
        """Return whether `where` selects the value."""
        if "method" in where and not _fits(value.method, where["method"]):
            return False
        return self._cell_fits(self.cells[value.workload, value.optimization][0], where)

    def reason(
        self, workload: str, optimization: str, metric: str, method: str, heading: str = ""
    ) -> tuple[str, str]:
        """Return in a word and in a sentence why there is no such value.

        Where nothing is known but that it was not recorded, all cells below one `heading` get one sentence.
        """
        place = workload, optimization
        records = self.cells.get(place)
        if not records:
            return "not run", f"{optimization} on {workload}: no record"
        if failed := [r for r in records if r.status != Status.OK]:
            bad = next((r for r in failed if r.status == Status.WRONG_RESULT), failed[0])
            return bad.status.replace("_", " "), f"{optimization} on {workload}: {why(bad)}"
        known = self._missing.get((*place, metric, method)) or self._missing.get((*place, metric, ""))
        known = known or self.note(*place, metric) or self.note(*place, method)
        if not known and heading:
            known = f"{heading}: no value was recorded"
        what = f"{metric} by {method}" if method else metric
        return "–", known or f"{what} was not recorded for {optimization}"

    def note(self, workload: str, optimization: str, about: str) -> str:
        """Return what the suite noted on a metric or method of a cell after its name and a colon; else ""."""
        begin = f"{about}: "
        texts = (text for r in self.cells.get((workload, optimization), ()) for text in r.notes)
        return next((text.removeprefix(begin) for text in texts if about and text.startswith(begin)), "")

    def condition(self, workload: str, optimization: str, name: str) -> str:
        """Return the condition of a cell, "" where it does not state it."""
        records = self.cells.get((workload, optimization))
        return records[0].conditions.get(name, "") if records else ""

    def field(self, workload: str, name: str) -> float | None:
        """Return a field of the workload that is a number above zero; None where it has none."""
        of_it = (r for r in self.records if r.cell.workload == workload)
        value = next((r.cell.config.get("workload", {}).get(name) for r in of_it), None)
        return float(value) if isinstance(value, int | float) and value > 0 else None

    def _cell_fits(self, record: Record, where: Where) -> bool:
        cell, fields = record.cell, record.cell.config.get("workload", {})
        for key, wanted in where.items():
            # a block that is repeated for each of the user's workloads wants one of them
            one_of_own = isinstance(wanted, str) and wanted in self.own
            of_any = key == "workload" and cell.workload in self.own and not one_of_own
            value = getattr(cell, key) if key in ("workload", "optimization") else fields.get(key)
            if key != "method" and not of_any and not _fits(value, wanted):
                return False
        return True

    def _rank(self, key: str, name: str) -> tuple[int, list[tuple[int, int, str]]]:
        """Order the user's workloads first, then as the report lists, then by the sizes in the names."""
        listed = self._order.get(key, {})
        parts = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name) if p]
        own = key == "workload" and name in self.own
        return -1 if own else listed.get(name, len(listed)), parts

    def _place(self, record: Record) -> tuple[Any, ...]:
        cell = record.cell
        ranks = (self._rank(key, getattr(cell, key)) for key in ("workload", "optimization"))
        return *ranks, cell.repeat, cell.id


def why(record: Record) -> str:
    """Return in one line how a cell ended and for what reason."""
    reason = " ".join(record.reason.split())
    return record.status.replace("_", " ") + (f": {reason}" if reason else "")


def _fits(value: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted one; text may meet one of several patterns, `!` refuses."""
    if not isinstance(value, str) or not isinstance(wanted, str | list):
        return bool(value == wanted)
    patterns = [wanted] if isinstance(wanted, str) else wanted
    refused = [p[1:] for p in patterns if p.startswith("!")]
    allowed = [p for p in patterns if not p.startswith("!")] or ["*"]
    return any(fnmatchcase(value, p) for p in allowed) and not any(fnmatchcase(value, p) for p in refused)


UNNAMED = ("source", "hf_config", "measurable", "simulated_device")
"""Fields that describe a workload, or how a value was obtained, which its origin mark shows."""


def with_changed_workloads(
    spec: Spec,
    records: Iterable[Record],
    shipped: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
) -> Spec:
    """Return the report with the changed fields behind the names of workloads that differ from `shipped`.

    `shipped`: the fields that the suite's YAML gives each of its workloads; `defaults`: those of all others.
    """
    names = dict(spec.names.get("workload", {}))
    for record in records:
        workload, fields = record.cell.workload, record.cell.config.get("workload", {})
        given = {**defaults, **shipped[workload]} if workload in shipped else {}
        compared = [name for name in given if name in fields and name not in UNNAMED]
        changed = [_stated(name, fields[name]) for name in compared if not _same(fields[name], given[name])]
        if changed:
            names[workload] = f"{spec.name('workload', workload)} ({', '.join(changed)})"
    return spec._replace(names={**spec.names, "workload": names})


def _stated(name: str, value: Any) -> str:
    """Return `field=value`, or that a table of values was changed."""
    if isinstance(value, dict):
        return f"{name} changed"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _same(ours: Any, given: Any) -> bool:
    """Return whether a record's value is the YAML's; one that refers to other keys is not compared."""
    if isinstance(given, str) and given.startswith("${"):
        return True
    try:  # PyYAML reads 1.0e9 as text
        return bool(given == ours or (not isinstance(ours, str) and float(given) == ours))
    except (TypeError, ValueError):
        return False
