"""Write a comparison of two folders as Markdown: three lines, one table, then conditions and statuses.

The table of a comparison: failures first, then what changed most beyond the noise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from harness.commands.compare.change import FALSE_FINDINGS, LEAST_PROCESSES, LOWER, Change
from harness.commands.compare.comparison import CellName, FolderComparison, MetricChange, ResultsFolder
from harness.commands.compare.data import HOST, ConditionChange, same_identities
from harness.config.variants.optimizations import BASELINE
from harness.records import UNITS
from harness.report.markdown import escape, grid
from harness.report.tables import Table, TableCell
from harness.statistics import MOST_BAND
from harness.units import counted, human, legend, marked, number, times

ROWS = 40
"""Rows of the table; the JSON has all of them."""

DIFFERENT = ("worse", "better", "changed")
"""Verdicts on metrics that differ."""


def table_part(found: FolderComparison) -> str:
    """Return the table: failures first, then what changed most beyond the noise."""
    rows = ranked(found)
    if not rows:
        return ""
    shown = rows[:ROWS]
    metrics = [found.metrics[i] for i in shown]
    several_hosts = len({one.machines for one in found.metrics}) > 1
    lines = [
        (
            TableCell(
                one.workload + (f" ({' → '.join(dict.fromkeys(one.machines))})" if several_hosts else ""),
                look="word",
            ),
            TableCell(one.optimization, look="word"),
            TableCell(metric_name(one), look="word"),
            TableCell(_values(one)),
            TableCell(ratio_text(one.change)),
            TableCell(_effect_text(one)),
            TableCell("failure" if found.failed[i] else found.verdicts[i], look="word"),
        )
        for i, one in zip(shown, metrics, strict=True)
    ]
    header = (
        "Workload",
        "Optimization",
        "Metric",
        "A → B",
        "B / A (95 % interval)",
        "Over baseline, A → B",
        "Verdict",
    )
    text = grid(Table("changes", "", "", header, tuple(lines)))
    more = len(rows) - len(shown)
    left = f"Not shown: {counted(more, 'row')}; `--json PATH` has all of them. " if more else ""
    return f"{text}\n\n{left}{legend(one.origin for one in metrics)}"


def ranked(found: FolderComparison) -> list[int]:
    """Return which metrics the table shows, in its order: what differs, and what may differ by much."""
    shown = [
        i
        for i, (one, verdict) in enumerate(zip(found.metrics, found.verdicts, strict=True))
        if found.failed[i] or verdict in DIFFERENT or (verdict == "undecided" and _may_differ(one))
    ]
    decided = {i: found.verdicts[i] in DIFFERENT for i in shown}
    return sorted(
        shown,
        key=lambda i: (
            not found.failed[i],
            not decided[i],
            -found.metrics[i].change.beyond_noise,
            -abs(found.metrics[i].change.log_ratio),
        ),
    )


def _may_differ(one: MetricChange) -> bool:
    """Return whether an undecided metric seems to differ by more than the largest difference that is none."""
    return bool(one.sign) and not one.not_compared and abs(one.change.log_ratio) > math.log1p(MOST_BAND)


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


LISTED = 10
"""Cells that are listed by name; the JSON has all of them."""

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
    parts = ["\n".join(f"{line}  " for line in summary(a, b, found, conditions)).rstrip()]
    parts += [table_part(found)]
    parts += [_baselines(found)]
    parts += _statuses(found)
    parts += _conditions(found, conditions)
    parts += [HOW_TO_READ]
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(
    a: ResultsFolder, b: ResultsFolder, found: FolderComparison, conditions: Sequence[ConditionChange]
) -> list[str]:
    """Return three lines: on which hosts, how much changed, whether that is a failure."""
    host = next((one for one in conditions if one.name == HOST), None)
    others = [one.name for one in conditions if one.name != HOST and not one.cells]
    where = f"Hosts differ: {host.a} in A, {host.b} in B." if host else f"Same host: {_hosts(a)}."
    differ = f" Also different: {', '.join(others)}." if others else ""
    return [
        f"{where}{differ} A is {escape(str(a.path))}, B is {escape(str(b.path))}.",
        _counts(found),
        _answer(found),
    ]


def _hosts(folder: ResultsFolder) -> str:
    return "; ".join(dict.fromkeys(folder.machine(one) for one in folder.records))


def _counts(found: FolderComparison) -> str:
    counts = Counter(found.verdicts)
    shown = [f"{counts[name]} {name}" for name in ORDER if counts[name]]
    metrics, cells = counted(len(found.metrics), "metric"), counted(len(found.matched), "cell")
    ended = f" {counted(len(found.statuses), 'cell')} ended differently." if found.statuses else ""
    return f"{metrics} of {cells} in both: {', '.join(shown)}.{ended}"


ORDER = (*DIFFERENT, "no difference", "same", "undecided")
"""Verdicts in the order in which they are counted."""


def _answer(found: FolderComparison) -> str:
    """Return whether the comparison is a failure, and by what."""
    if found.fail_above is None:
        if not (changed := ranked(found)) or found.verdicts[changed[0]] not in DIFFERENT:
            return "Nothing changed beyond the noise."
        first = found.metrics[changed[0]]
        return f"Changed most beyond the noise: {_name(first)}, {ratio_text(first.change)}."
    margin = f"{100 * found.fail_above:g} %"
    worse, lost = sum(found.failed), sum(one.is_lost for one in found.statuses)
    parts = (
        [f"{counted(worse, 'metric is', 'metrics are')} worse by more than {margin} beyond the noise"]
        if worse
        else []
    )
    parts += [f"{counted(lost, 'cell')} no longer {'ends' if lost == 1 else 'end'} ok"] if lost else []
    if parts:
        return f"**Failure:** {' and '.join(parts)}."
    judged = sum(one.is_judged or (one.is_exact and bool(one.sign)) for one in found.metrics)
    return (
        f"No failure: none of {counted(judged, 'metric')} that can be judged is worse by more than {margin} "
        f"beyond the noise."
    )


def _name(one: MetricChange) -> str:
    return f"{metric_name(one)} of {one.optimization} on {one.workload}"


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
    for folder, cells, metrics in (
        ("A", found.only_a, found.metrics_only_a),
        ("B", found.only_b, found.metrics_only_b),
    ):
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


def _conditions(found: FolderComparison, conditions: Sequence[ConditionChange]) -> Iterator[str]:
    cells = f"{same_identities(found.matched)} of {counted(len(found.matched), 'cell')}"
    note = f"The same configuration, sources, machine and libraries in both: {cells}."
    lines = [
        f"- {escape(one.name)}: {escape(one.a)} → {escape(one.b)}"
        + (f" ({counted(one.cells, 'cell')})" if one.cells else "")
        for one in conditions
    ]
    yield (
        "\n\n".join(["**Conditions that differ**", "\n".join(lines), note])
        if lines
        else f"No condition differs. {note}"
    )
