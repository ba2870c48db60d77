"""Which values of a metric are better: as the suite's report declares, else by the metric's unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.records import Measurement, Origin

JUDGED_BY_UNIT = (Origin.MEASURED, Origin.EMULATED, Origin.SIMULATED)
"""Origins whose unit decides. A calculated metric counts only where the report compares it."""

LOWER, HIGHER, NEITHER = "lower", "higher", "neither"

PEAK_MEMORY = "peak_memory"
"""The metric that reports show with each training step."""


class Directions(NamedTuple):
    """What one suite's report declares; metrics by (metric, method)."""

    better: Mapping[tuple[str, str], str] = {}
    draws: frozenset[tuple[str, str]] = frozenset()  # whose rounds are independent draws: their mean counts
    shown: frozenset[str] = frozenset()  # metrics that are compared by some method, or shown with those
    series: tuple[str, ...] = ()  # metrics whose samples are points of a course, and no repetitions

    def of(self, one: Measurement) -> tuple[str, bool]:
        """Return lower, higher or neither, and whether the report compares this metric itself.

        Metrics that a report neither compares nor shows with those have no direction. Without a report all
        have that of their unit.
        """
        declared = self.better.get((one.metric, one.method))
        if declared is not None:
            return declared, declared != NEITHER
        if one.origin not in JUDGED_BY_UNIT or (self.better and one.metric not in self.shown):
            return NEITHER, False
        from harness.report.default_blocks import BETTER

        return BETTER.get(one.unit, HIGHER), False

    def is_series(self, metric: str) -> bool:
        """Return whether the samples of a metric are not compared: a course over time, or of a warm-up."""
        return metric.endswith("/warm_up") or any(
            metric == name or metric.startswith(f"{name}/") for name in self.series
        )


def directions(suite: str) -> Directions:
    """Return what conf/report/<suite>.yaml declares; raises ConfigError where that file has a mistake."""
    from harness.report.language.spec import load_spec

    better: dict[tuple[str, str], str] = {}
    draws: set[tuple[str, str]] = set()
    shown: list[str] = []
    series: list[str] = []
    for block in load_spec(suite).blocks:
        fields = block.fields
        if block.kind in ("effects", "effect_plot", "speedups", "isolated_vs_e2e"):
            key = fields["metric"], fields["method"]
            better.setdefault(key, fields.get("better", LOWER))
            draws |= {key} if fields["draws"] else set()
            shown += [fields["metric"], *fields.get("extra_metrics", ())]
            shown += [PEAK_MEMORY] if fields.get("training") else []
        series += _series(block.kind, fields)
    return Directions(better, frozenset(draws), frozenset(shown), tuple(dict.fromkeys(series)))


def _series(kind: str, fields: Mapping[str, Any]) -> Sequence[str]:
    """Return the metrics that a block draws over time."""
    match kind:
        case "spans":
            return [fields["begin"], fields["end"]]
        case "stacked_timeline":
            return [*fields["stacks"], *filter(None, [fields["phases"]])]
        case "line_over_steps":
            return [fields["metric"]]
    return []
