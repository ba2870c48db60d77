"""The table of a comparison: failures first, then what changed most beyond the noise."""

from __future__ import annotations

import math

from harness.commands.compare.change import Change
from harness.commands.compare.comparison import FolderComparison
from harness.commands.compare.directions import LOWER
from harness.commands.compare.metrics import MetricChange
from harness.records import UNITS
from harness.report.output.markdown import grid
from harness.report.tables.tables import Table, TableCell
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
