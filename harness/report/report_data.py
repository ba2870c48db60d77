"""Hold what a report is made from, and make its blocks into tables and figures.

Choose the blocks of a suite without conf/report/<suite>.yaml: a table and a figure per metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.claims.model import Claim, Verdict
from harness.records import Record
from harness.report.data.result_index import ResultIndex
from harness.report.data.speedup import OTHERS
from harness.report.data.training_metrics import PeakRates, add_training_metrics, basis
from harness.report.figures.figure import Figure, drawing_style
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables import effect_tables, pivot, tables
from harness.report.tables.effect_tables import rates, roofline
from harness.report.tables.pivot import what_if
from harness.report.tables.suite_tables import (
    errors,
    isolated_vs_end_to_end,
    portability_table,
    stack_pairs,
    stack_values,
    stack_whole,
)
from harness.report.tables.tables import Table
from harness.report.tables.verdicts import verdict_table
from harness.units import legend

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


TABLES: Mapping[str, Callable[[ReportBlock, Spec, ResultIndex], Table]] = {
    "effects": effect_tables.effects,
    "errors": errors,
    "speedups": effect_tables.speedups,
    "isolated_vs_e2e": isolated_vs_end_to_end,
    "performance_portability": portability_table,
    "roofline": roofline,
    "failures": tables.failures,
    "what_if": what_if,
    "stack_values": stack_values,
    "stack_whole": stack_whole,
    "stack_pairs": stack_pairs,
}


@dataclass(frozen=True)
class ReportData:
    """One suite's run, judged."""

    suite: str
    spec: Spec
    records: Sequence[Record]
    verdicts: Sequence[Verdict]
    environment: Mapping[str, Any]
    claims: Sequence[Claim]
    peaks: PeakRates = field(default_factory=PeakRates)
    left_out: tuple[str, ...] = ()  # sentences about what was not run
    shipped: frozenset[str] | None = None  # the suite's own workloads: see ResultIndex
    apart: tuple[str, ...] = ()  # sentences about records of other machines, see `harness.claims.values`

    @cached_property
    def index(self) -> ResultIndex:
        """Return its values in the report's order, with the derived ones of training steps."""
        index = ResultIndex(self.records, self.spec.ranking, self.shipped)
        add_training_metrics(index, self.known_peaks)
        return index

    @property
    def legend(self) -> str:
        """Return what the marks of its values' origins mean."""
        return legend(one.origin for record in self.records for one in record.measurements)

    @cached_property
    def known_peaks(self) -> PeakRates:
        """Return the given peak rates, and this run's matmul rates where it has a roofline."""
        block = next((one for one in self.spec.blocks if one.kind == "roofline"), None)
        if block is None:
            return self.peaks
        measured = rates(block.fields, ResultIndex(self.records, self.spec.ranking)).compute
        return self.peaks._replace(
            measured={**self.peaks.measured, **{name: rate for name, rate in measured.items() if rate}}
        )

    @cached_property
    def blocks(self) -> tuple[ReportBlock, ...]:
        """Return the report's blocks, with the workload chosen in those about one workload."""
        listed = [
            block
            for one in self.spec.blocks
            for block in (metric_blocks(one, self.index) if one.kind == "every_metric" else [one])
        ]
        chosen = (one for block in listed for one in _chosen(block, self.spec, self.index))
        distinct: dict[str, ReportBlock] = {}
        for block in chosen:
            distinct.setdefault(_content(block), block)
        return tuple(distinct.values())

    def table(self, block: ReportBlock) -> Table | None:
        """Return the table that the block asks for; None where it asks for a figure."""
        if block.kind == "verdicts":
            return verdict_table(block, self.claims, self.verdicts)
        if block.kind == "table":
            made = pivot.pivot(block, self.spec, self.index, self.claims)
        elif block.kind in TABLES:
            made = TABLES[block.kind](block, self.spec, self.index)
        else:
            return None
        if not made.rows and block.kind != "failures":
            return made._replace(text="Nothing was recorded for this table.")
        return made._replace(text=f"{made.text} {basis(block, self.index, self.known_peaks)}".strip())

    def figure(self, block: ReportBlock) -> Figure | None:
        """Return the figure that the block asks for; None where it asks for a table or has no record."""
        from harness.report.figures.plots import FIGURES

        draw = FIGURES.get(block.kind)
        if draw is None:
            return None
        claimed = block._replace(fields={**block.fields, "claims": self.claims})
        with drawing_style(block.id):
            return draw(claimed, self.spec, self.index)


def _content(block: ReportBlock) -> str:
    """Return what a block shows: those about one workload each are alike where the run has another alone."""
    placed = ("shown", "top", "terminal", "workload")
    return repr((block.kind, block.title, {k: v for k, v in block.fields.items() if k not in placed}))


def _chosen(block: ReportBlock, spec: Spec, index: ResultIndex) -> list[ReportBlock]:
    """Return a block about one workload for each of the user's, else for its own choice, or the first."""
    preferred = block.fields.get("workload")
    if not preferred:
        return [block]
    run = index.names("workload", block.fields["where"])
    own = [name for name in run if name in index.own]
    shipped = preferred if preferred in run or not run else run[0]
    return [_about(block, spec, name, i) for i, name in enumerate(own or [shipped])]


def _about(block: ReportBlock, spec: Spec, workload: str, place: int) -> ReportBlock:
    """Return the block about a workload; from the second one on its id has a number."""
    name = spec.name("workload", workload)
    title = block.title if "{workload}" in block.title or not place else f"{block.title}: {{workload}}"
    return block._replace(
        id=f"{block.id}_{place + 1}" if place else block.id,
        title=title.format(workload=name),
        text=block.text.format(workload=name),
        fields={**block.fields, "where": {**block.fields["where"], "workload": workload}},
    )
