"""Choose the blocks of a suite without conf/report/<suite>.yaml: a table and a figure per metric."""

from __future__ import annotations

from typing import Any

from harness.report.data.result_index import ResultIndex
from harness.report.data.speedup import OTHERS
from harness.report.language.spec import ReportBlock

BASELINE, AGAIN = "baseline", "baseline_again"
BETTER = {"s": "lower", "B": "lower", "Hz": "neither", "1": "neither"}
"""Unit to which of its values are better; rates, which are the rest, are better higher."""


def metric_blocks(block: ReportBlock, index: ResultIndex) -> list[ReportBlock]:
    """Return, per metric and method, every variant compared with the baseline, and the ratios drawn."""
    variants = index.names("optimization", {})
    noise = AGAIN if AGAIN in variants else ""
    compared = len(set(variants) - {BASELINE, AGAIN}) * len(index.names("workload", {}))
    blocks = []
    for metric, method, unit in dict.fromkeys(
        (one.metric, one.method, one.unit) for one in index.table.values()
    ):
        if metric.endswith("/warm_up") or metric == OTHERS:
            continue
        name = f"{metric.replace('_', ' ').replace('/', ': ')}{f' ({method})' if method else ''}"
        title = name[0].upper() + name[1:]
        id = "".join(c if c.isalnum() else "_" for c in f"{metric}_{method}".strip("_"))
        common: dict[str, Any] = {
            "where": {},
            "metric": metric,
            "method": method,
            "unit": "auto",
            "baseline": BASELINE,
        }
        common |= {"noise": noise if unit == "s" else "", "draws": False, "equal_within": 0.0, "workload": ""}
        common |= {"better": BETTER.get(unit, "higher")}
        table = {
            **common,
            "conditions": {},
            "extra_metrics": {},
            "training": False,
            "terminal": block.fields["terminal"],
        }
        blocks.append(ReportBlock("effects", f"{block.id}_{id}", title, "", table))
        if BASELINE in variants and compared > 1:  # one ratio is no figure
            plot = {**common, "x_title": ""}
            blocks.append(ReportBlock("effect_plot", f"{block.id}_{id}_plot", f"{title}, drawn", "", plot))
    return blocks
