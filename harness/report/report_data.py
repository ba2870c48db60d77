"""Hold what a report is made from, and make its blocks into tables and figures.

Choose the blocks of a suite without conf/report/<suite>.yaml: a table and a figure per metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from harness.claims.model import Claim, Verdict
from harness.config.optimizations import AGAIN, BASELINE, code_of
from harness.records import Record
from harness.report.block_tables import TABLES, columns_table
from harness.report.comparison import OTHERS
from harness.report.figure import Figure, drawing_style
from harness.report.results import ResultIndex
from harness.report.spec import (
    Block,
    EffectPlotBlock,
    EffectsBlock,
    OwnBlock,
    OwnFigureBlock,
    OwnTableBlock,
    Spec,
    TableBlock,
    plot_of,
)
from harness.report.tables import Table
from harness.report.training import PeakRates, add_training_metrics, basis
from harness.units import legend

BETTER = {"s": "lower", "B": "lower", "Hz": "neither", "1": "neither"}
"""Unit to which of its values are better; rates, which are the rest, are better higher."""


def metric_blocks(index: ResultIndex) -> list[Block]:
    """Return, per metric and method, every variant compared with the baseline, and the ratios drawn."""
    variants = index.names("optimization", {})
    noise = AGAIN if AGAIN in variants else ""
    compared = len(set(variants) - {BASELINE, AGAIN}) * len(index.names("workload", {}))
    blocks: list[Block] = []
    for metric, method, unit in dict.fromkeys(
        (one.metric, one.method, one.unit) for one in index.table.values()
    ):
        if metric.endswith("/warm_up") or metric == OTHERS:
            continue
        name = f"{metric.replace('_', ' ').replace('/', ': ')}{f' ({method})' if method else ''}"
        id = "".join(c if c.isalnum() else "_" for c in f"metrics_{metric}_{method}".rstrip("_"))
        table = EffectsBlock(
            id=id,
            title=name[0].upper() + name[1:],
            metric=metric,
            method=method,
            noise=noise if unit == "s" else "",
            better=BETTER.get(unit, "higher"),  # type: ignore[arg-type]
        )
        blocks.append(table)
        if BASELINE in variants and compared > 1:  # one ratio is no figure
            blocks.append(plot_of(table, f"{table.id}_plot", f"{table.title}, drawn"))
    return blocks


def own_report(suite: str) -> ModuleType:
    """Return the module of the suite's package with tables and figures of its own."""
    return import_module(f"{code_of(suite).package}.report")


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
        """Return the given peak rates, and this run's matmul rates where the suite times such products."""
        if not any(isinstance(one, OwnBlock) for one in self.spec.blocks):
            return self.peaks
        if (timed := getattr(own_report(self.suite), "matmul_rates", None)) is None:
            return self.peaks
        measured = timed(ResultIndex(self.records, self.spec.ranking))
        return self.peaks._replace(measured={**self.peaks.measured, **measured})

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the report's blocks, with the workload chosen in those about one workload."""
        listed = self.spec.blocks or metric_blocks(self.index)
        distinct: dict[str, Block] = {}  # those about one workload each are alike where one was run alone
        for one in (one for block in listed for one in _chosen(block, self.spec, self.index)):
            content = replace(one, id="", text="", workload="", shown=False, top=False)
            distinct.setdefault(repr(content), one)
        return tuple(distinct.values())

    def table(self, block: Block) -> Table | None:
        """Return the table that the block asks for; None for one of a figure, or without values."""
        made: Table | None = None
        if isinstance(block, TableBlock):
            made = columns_table(block, self.spec, self.index, self.claims)
        elif isinstance(block, OwnTableBlock):
            made = self._own(block)
        elif type(block) in TABLES:
            made = TABLES[type(block)](block, self.spec, self.index)
        if made is None:
            return None
        basics = f"{made.text} {basis(block, self.index, self.known_peaks)}".strip()
        return made._replace(text=basics if made.rows else "Nothing was recorded for this table.")

    def figure(self, block: Block) -> Figure | None:
        """Return the figure that the block asks for; None where it asks for a table or has no record."""
        from harness.report.charts import FIGURES, effect_plot

        with drawing_style(block.id):
            if isinstance(block, EffectPlotBlock):
                return effect_plot(block, self.spec, self.index, self.claims)
            if isinstance(block, OwnFigureBlock):
                return self._own(block)  # type: ignore[no-any-return]
            draw = FIGURES.get(type(block))
            return draw(block, self.spec, self.index) if draw else None

    def _own(self, block: OwnBlock) -> Any:
        return getattr(own_report(self.suite), block.function)(block, self.spec, self.index)


def _chosen(block: Block, spec: Spec, index: ResultIndex) -> Iterator[Block]:
    """Yield a block about one workload for each of the user's, else for its own choice, or the first.

    From the second one on its id has a number.
    """
    if not block.workload:
        yield block
        return
    run = index.names("workload", block.where)
    shipped = block.workload if block.workload in run or not run else run[0]
    for place, workload in enumerate([name for name in run if name in index.own] or [shipped]):
        name = spec.name("workload", workload)
        title = block.title if "{workload}" in block.title or not place else f"{block.title}: {{workload}}"
        yield replace(
            block,
            id=f"{block.id}_{place + 1}" if place else block.id,
            title=title.format(workload=name),
            text=block.text.format(workload=name),
            where={**block.where, "workload": workload},
        )
