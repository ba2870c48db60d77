"""Decide where each block of a report is: at the top, in view, folded, or left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.config.variants.optimizations import BASELINE
from harness.report.figures.figure import Figure
from harness.report.language.spec import ReportBlock
from harness.report.report_data import ReportData
from harness.report.tables.tidy import TidyTable, tidy

SHOWN = 3
"""Blocks in view where conf/report/ marks none."""


class Part(NamedTuple):
    """A block with its table or its figure."""

    block: ReportBlock
    table: TidyTable | None = None
    figure: Figure | None = None

    @property
    def label(self) -> str:
        """Return its title without the workload, for a list of contents."""
        return self.block.title.partition(": ")[0]


class Layout(NamedTuple):
    """The parts of a report, in the order in which they are read."""

    top: Part | None  # the figure that answers the question
    shown: tuple[Part, ...]
    more: tuple[Part, ...]  # folded
    claims: Part | None
    failures: Part | None
    empty: tuple[str, ...]  # titles of blocks without a value

    @property
    def figures(self) -> dict[str, Figure]:
        """Return every figure by the name of its file."""
        parts = (self.top, *self.shown, *self.more)
        return {f"{part.block.id}.svg": part.figure for part in parts if part and part.figure}


def arrange(data: ReportData) -> Layout:
    """Return the parts of a report; draws its figures."""
    parts = [_part(data, block) for block in data.blocks]
    failures = next((part for part in parts if part.block.kind == "failures" and _rows(part)), None)
    compared = any(verdict.outcome != "unavailable" for verdict in data.verdicts)
    claims = next((part for part in parts if part.block.kind == "verdicts" and compared), None)
    others = [part for part in parts if part.block.kind not in ("verdicts", "failures")]
    filled = [part for part in others if part.figure or (_rows(part) and not _baseline_alone(data, part))]
    top = _top(data, filled)
    rest = [part for part in filled if top is None or part.block.id != top.block.id]
    marked = [part for part in rest if part.block.fields.get("shown")] or rest[:SHOWN]
    return Layout(
        top,
        tuple(marked),
        tuple(part for part in rest if part not in marked),
        claims,
        failures,
        tuple(part.block.title for part in others if part not in filled),
    )


def _part(data: ReportData, block: ReportBlock) -> Part:
    table = data.table(block)
    if table is not None:
        return Part(block, tidy(table))
    return Part(block, figure=data.figure(block))


def _rows(part: Part) -> bool:
    return part.table is not None and bool(part.table.table.rows)


def _baseline_alone(data: ReportData, part: Part) -> bool:
    """Return whether a table of variants has only the baseline, with nothing to compare it with."""
    if part.block.kind != "table" or part.block.fields["rows"] != "optimization" or part.table is None:
        return False
    names = [row[0].text for row in part.table.table.rows]
    return names == [data.spec.name("optimization", BASELINE)]


def _top(data: ReportData, parts: Iterable[Part]) -> Part | None:
    """Return the figure marked `top`, the first plot of effects, one of the first such table, or any."""
    listed = list(parts)
    drawn = [part for part in listed if part.figure]
    if chosen := [part for part in drawn if part.block.fields.get("top")]:
        return chosen[0]
    plots = [part for part in drawn if part.block.kind == "effect_plot"]
    if plots:
        return next((p for p in plots if p.block.fields["better"] != "neither"), plots[0])
    for part in listed:
        if part.block.kind == "effects":
            block = part.block._replace(kind="effect_plot", id=f"{part.block.id}_drawn", text="")
            block = block._replace(fields={**block.fields, "x_title": ""})
            if figure := data.figure(block):
                return Part(block, figure=figure)
    return drawn[0] if drawn else None
