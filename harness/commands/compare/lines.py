"""A comparison of two folders as JSON and as Markdown, and the conditions in which they differ.

JSON has every metric, status and condition, values in base units. Markdown has three lines, one table, then
conditions and statuses. In the table failures come first, then what changed most beyond the noise.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from harness.commands.compare.change import FALSE_FINDINGS, LEAST_PROCESSES, LOWER, Change
from harness.commands.compare.comparison import (
    CellName,
    FolderComparison,
    MetricChange,
    Repeats,
    ResultsFolder,
    machine,
)
from harness.config.optimizations import BASELINE
from harness.records import UNITS, Record
from harness.report.markdown import escape, flat, grid
from harness.report.tables import Table, TableCell
from harness.statistics import MOST_BAND
from harness.units import counted, human, legend, marked, number, times

HOST = "host"
FEW_VALUES = 3  # a condition with more different pairs of values than this is named without them
LONGEST = 60  # longer values are cut to so many characters


class ConditionChange(NamedTuple):
    """A condition with its values in A and B as text; `cells`: in how many cells, 0 for the whole run."""

    name: str
    a: str
    b: str
    cells: int = 0


def condition_changes(
    a: ResultsFolder, b: ResultsFolder, matched: Sequence[tuple[Repeats, Repeats]]
) -> list[ConditionChange]:
    """Return every condition that differs, that of the hosts first."""
    return [*_of_environments(_used(a), _used(b)), *_of_cells(matched)]


def same_identities(matched: Sequence[tuple[Repeats, Repeats]]) -> int:
    """Return how many cells have the same identity in both: configuration, sources, machine and libraries."""
    return sum({one.cell.id for one in a.values()} == {one.cell.id for one in b.values()} for a, b in matched)


def _used(folder: ResultsFolder) -> list[Mapping[str, Any]]:
    names = dict.fromkeys(record.environment for record in folder.records)
    return [folder.environments.get(name, {"unknown": name}) for name in names]


def _of_environments(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> Iterator[ConditionChange]:
    described = [[_described(one) for one in side] for side in (a, b)]
    for name in dict.fromkeys(name for side in described for one in side for name in one):
        first, second = (
            ", ".join(dict.fromkeys(one.get(name) or "none" for one in side)) for side in described
        )
        if first != second:
            yield ConditionChange(name, first, second)


def _described(environment: Mapping[str, Any]) -> dict[str, str]:
    if "unknown" in environment:
        return {HOST: f"unknown host {environment['unknown']}".strip()}
    commit = str(environment.get("commit", ""))[:7]
    return {
        HOST: machine(environment),
        "GPU driver": str(environment.get("driver", "")),
        **{library: str(version) for library, version in environment.get("versions", {}).items()},
        "Python": str(environment.get("python", "")),
        "system": str(environment.get("system", "")),
        "commit": f"{commit} with changes" if environment.get("dirty") and commit else commit,
    }


def _of_cells(matched: Sequence[tuple[Repeats, Repeats]]) -> Iterator[ConditionChange]:
    """Yield what differs in the cells' configuration and conditions; cells that differ alike in one."""
    found: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for a, b in matched:
        first, second = (_of_record(next(iter(side.values()))) for side in (a, b))
        if len(a) != len(b):
            first["repeats"], second["repeats"] = str(len(a)), str(len(b))
        for name in dict.fromkeys([*first, *second]):
            pair = first.get(name, "none"), second.get(name, "none")
            if pair[0] != pair[1]:
                found[name][pair] += 1
    for name, pairs in found.items():
        if len(pairs) > FEW_VALUES:
            yield ConditionChange(name, "several values", "others", sum(pairs.values()))
        else:
            for both, count in pairs.items():
                one, other = (t if len(t) <= LONGEST else f"{t[: LONGEST - 1]}…" for t in both)
                yield ConditionChange(name, one, other, count)


def _of_record(record: Record) -> dict[str, str]:
    return {
        **dict(flat(record.cell.config)),
        **{f"condition {name}": str(value) for name, value in record.conditions.items()},
        "seed": str(record.cell.seed - record.cell.repeat),
        "limits.timeout_s": f"{record.limits.timeout_s:g}",
        "limits.memory_B": str(record.limits.memory_B),
    }


FORMAT = 1  # version of this JSON


def as_data(
    a: ResultsFolder, b: ResultsFolder, found: FolderComparison, conditions: Sequence[ConditionChange]
) -> dict[str, Any]:
    """Return the comparison as plain data; what is infinite or unknown is None."""
    return {
        "format": FORMAT,
        "a": str(a.path),
        "b": str(b.path),
        "fail_above": found.fail_above,
        "failure": found.is_failure,
        "metrics": [
            _metric(one) | {"verdict": verdict, "failure": failed}
            for one, verdict, failed in zip(found.metrics, found.verdicts, found.failed, strict=True)
        ],
        "statuses": [
            one.cell._asdict() | {"a": dict(one.a), "b": dict(one.b), "lost": one.is_lost}
            for one in found.statuses
        ],
        "only_a": [one._asdict() for one in found.only_a],
        "only_b": [one._asdict() for one in found.only_b],
        "conditions": [one._asdict() for one in conditions],
        "cells": len(found.matched),
        "cells_with_same_identity": same_identities(found.matched),
    }


def _metric(one: MetricChange) -> dict[str, Any]:
    apart = ("change", "effect_change", "machines", "is_declared")
    data = {name: _finite(value) for name, value in one._asdict().items() if name not in apart}
    return data | {
        "machine_a": one.machines[0],
        "machine_b": one.machines[1],
        "compared_in_report": one.is_declared,
        "ratio": _change(one.change),
        "ratio_of_effects": _change(one.effect_change),
    }


def _change(change: Change | None) -> dict[str, Any] | None:
    if change is None or math.isnan(change.log_ratio):
        return None
    low, high = change.interval or (None, None)
    return {
        "value": _finite(change.ratio),
        "low": _finite(low),
        "high": _finite(high),
        "exact": change.exact,
        "degrees_of_freedom": change.degrees,
        "processes_a": change.processes[0],
        "processes_b": change.processes[1],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


ROWS = 40  # rows of the table; the JSON has all of them
DIFFERENT = ("worse", "better", "changed")  # verdicts on metrics that differ


def table_part(found: FolderComparison) -> str:
    """Return the table: failures first, then what changed most beyond the noise."""
    rows = ranked(found)
    if not rows:
        return ""
    shown = rows[:ROWS]
    metrics = [found.metrics[i] for i in shown]
    several_hosts = len({one.machines for one in found.metrics}) > 1
    header = ("Workload", "Optimization", "Metric", "A → B", "B / A (95 % interval)", "Over baseline, A → B")
    lines = []
    for i, one in zip(shown, metrics, strict=True):
        hosts = f" ({' → '.join(dict.fromkeys(one.machines))})" if several_hosts else ""
        names = (f"{one.workload}{hosts}", one.optimization, metric_name(one))
        numbers = (_values(one), ratio_text(one.change), _effect_text(one))
        verdict = "failure" if found.failed[i] else found.verdicts[i]
        lines.append((
            *(TableCell(name, look="word") for name in names),
            *map(TableCell, numbers),
            TableCell(verdict, look="word"),
        ))  # fmt: skip
    text = grid(Table("changes", "", "", (*header, "Verdict"), tuple(lines)))
    more = len(rows) - len(shown)
    left = f"Not shown: {counted(more, 'row')}; `--json PATH` has all of them. " if more else ""
    return f"{text}\n\n{left}{legend(one.origin for one in metrics)}"


def ranked(found: FolderComparison) -> list[int]:
    """Return which metrics the table shows, in its order: what differs, and what may differ by much."""
    order = []
    for i, (one, verdict) in enumerate(zip(found.metrics, found.verdicts, strict=True)):
        size, beyond = abs(one.change.log_ratio), one.change.beyond_noise
        # Undecided, it seems to differ by more than the largest difference that is none.
        may = verdict == "undecided" and one.sign and not one.not_compared and size > math.log1p(MOST_BAND)
        if found.failed[i] or verdict in DIFFERENT or may:
            order.append((not found.failed[i], verdict not in DIFFERENT, -beyond, -size, i))
    return [i for *_, i in sorted(order)]


def metric_name(one: MetricChange) -> str:
    """Return `time (packets)`: a metric with its method."""
    return f"{one.metric} ({one.method})" if one.method else one.metric


def _values(one: MetricChange) -> str:
    a, b = (
        human(value, one.unit) if one.unit in UNITS else f"{number(value)} {one.unit}"
        for value in (one.a, one.b)
    )
    return f"{a} → {marked(b, one.origin)}"


def ratio_text(change: Change) -> str:
    """Return `1.85× (1.78 … 1.94)`: a ratio with its interval where it has one."""
    ends = change.interval
    if ends is None:
        return times(change.ratio)
    low, high = (times(end).removesuffix("×") if 0 < end < 1e6 else ("0" if end < 1 else "∞") for end in ends)
    return f"{times(change.ratio)} ({low} … {high})"


def _effect_text(one: MetricChange) -> str:
    """Return `1.80× → 1.52×: 0.844× (0.80 … 0.89)`; where less is better, the baseline over ours."""
    if one.effect_change is None or one.effect_a is None or one.effect_b is None:
        return "–"
    if one.better != LOWER:
        return f"{times(one.effect_a)} → {times(one.effect_b)}: {ratio_text(one.effect_change)}"
    change = one.effect_change._replace(log_ratio=-one.effect_change.log_ratio)
    return f"{times(1 / one.effect_a)} → {times(1 / one.effect_b)}: {ratio_text(change)}"


LISTED = 10  # cells that are listed by name; the JSON has all of them

HOW_TO_READ = (
    "**B / A** is the ratio of the metric itself, with a 95 % interval over processes. It contains the drift "
    "of the host between the two runs. **Over baseline** is the speed-up over the baseline of the same run, "
    "in A and in B, and their ratio. Drift that both share cancels. A verdict is given where the difference "
    f"stands out among all metrics (Holm's method at {100 * FALSE_FINDINGS:.0f} %). With fewer than "
    f"{LEAST_PROCESSES} processes in either run, a metric that varies is undecided. A variant fails only if "
    "both ratios are worse by more than the margin."
)


def markdown(
    a: ResultsFolder, b: ResultsFolder, found: FolderComparison, conditions: Sequence[ConditionChange]
) -> str:
    """Return the comparison as Markdown."""
    top = "\n".join(f"{line}  " for line in summary(a, b, found, conditions)).rstrip()
    apart = (*_statuses(found), _conditions(found, conditions))
    parts = (top, table_part(found), _baselines(found), *apart, HOW_TO_READ)
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(
    a: ResultsFolder, b: ResultsFolder, found: FolderComparison, conditions: Sequence[ConditionChange]
) -> list[str]:
    """Return three lines: on which hosts, how much changed, whether that is a failure."""
    host = next((one for one in conditions if one.name == HOST), None)
    others = [one.name for one in conditions if one.name != HOST and not one.cells]
    same = "; ".join(dict.fromkeys(a.machine(one) for one in a.records))
    where = f"Hosts differ: {host.a} in A, {host.b} in B." if host else f"Same host: {same}."
    differ = f" Also different: {', '.join(others)}." if others else ""
    counts = Counter(found.verdicts)
    shown = ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])
    metrics, cells = counted(len(found.metrics), "metric"), counted(len(found.matched), "cell")
    ended = f" {counted(len(found.statuses), 'cell')} ended differently." if found.statuses else ""
    return [
        f"{where}{differ} A is {escape(str(a.path))}, B is {escape(str(b.path))}.",
        f"{metrics} of {cells} in both: {shown}.{ended}",
        _answer(found),
    ]


ORDER = (*DIFFERENT, "no difference", "same", "undecided")  # verdicts in the order in which they are counted


def _answer(found: FolderComparison) -> str:
    if found.fail_above is None:
        if not (changed := ranked(found)) or found.verdicts[changed[0]] not in DIFFERENT:
            return "Nothing changed beyond the noise."
        one = found.metrics[changed[0]]
        name = f"{metric_name(one)} of {one.optimization} on {one.workload}"
        return f"Changed most beyond the noise: {name}, {ratio_text(one.change)}."
    margin = f"{100 * found.fail_above:g} %"
    worse, lost = sum(found.failed), sum(one.is_lost for one in found.statuses)
    parts = []
    if worse:
        parts.append(
            f"{counted(worse, 'metric is', 'metrics are')} worse by more than {margin} beyond the noise"
        )
    if lost:
        parts.append(f"{counted(lost, 'cell')} no longer {'ends' if lost == 1 else 'end'} ok")
    if parts:
        return f"**Failure:** {' and '.join(parts)}."
    judged = sum(one.is_judged or (one.is_exact and bool(one.sign)) for one in found.metrics)
    return (
        f"No failure: none of {counted(judged, 'metric')} that can be judged is worse by more than {margin} "
        f"beyond the noise."
    )


def _baselines(found: FolderComparison) -> str:
    """Return how much the baselines changed: where all changed alike, the host may be the reason."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for one in found.metrics:
        if one.optimization == BASELINE and one.is_declared and not one.not_compared:
            ratios.setdefault((one.suite, metric_name(one)), []).append(one.change.ratio)
    texts = [
        f"{metric} {times(median(values))} (median of {counted(len(values), 'workload')}"
        + (f", {times(min(values))} to {times(max(values))})" if len(values) > 1 else ")")
        for (_, metric), values in ratios.items()
    ]
    reason = "Where all change alike, the host or code that all share is the reason."
    return f"Baselines, B / A: {'; '.join(texts)}. {reason}" if texts else ""


def _statuses(found: FolderComparison) -> Iterator[str]:
    if found.statuses:
        lost = [one for one in found.statuses if one.is_lost]
        ended = [*lost, *(one for one in found.statuses if not one.is_lost)]
        failure = " (**failure**: ok in all repeats of A; in B in none, or wrong in one)"
        mark = failure if found.fail_above is not None else ""
        lines = [
            f"- {_cell(one.cell)}: {_ended(one.a)} → {_ended(one.b)}{mark if one.is_lost else ''}"
            for one in ended[:LISTED]
        ]
        lines += [f"- and {len(ended) - LISTED} more"] if len(ended) > LISTED else []
        yield "**Cells that ended differently**\n\n" + "\n".join(lines)
    only = (("A", found.only_a, found.metrics_only_a), ("B", found.only_b, found.metrics_only_b))
    for folder, cells, metrics in only:
        if cells:
            names = "; ".join(_cell(one) for one in cells[:LISTED])
            more = f"; and {len(cells) - LISTED} more" if len(cells) > LISTED else ""
            yield f"Only in {folder}: {counted(len(cells), 'cell')}: {names}{more}."
        if metrics:
            yield f"Only in {folder}: {counted(metrics, 'metric')} of cells that both have."


def _cell(one: CellName) -> str:
    return escape(f"{one.optimization} on {one.workload} ({one.suite})")


def _ended(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} ({count})" for name, count in counts.items())


def _conditions(found: FolderComparison, conditions: Sequence[ConditionChange]) -> str:
    cells = f"{same_identities(found.matched)} of {counted(len(found.matched), 'cell')}"
    note = f"The same configuration, sources, machine and libraries in both: {cells}."
    lines = [
        f"- {escape(one.name)}: {escape(one.a)} → {escape(one.b)}"
        + (f" ({counted(one.cells, 'cell')})" if one.cells else "")
        for one in conditions
    ]
    if not lines:
        return f"No condition differs. {note}"
    return "\n\n".join(["**Conditions that differ**", "\n".join(lines), note])
