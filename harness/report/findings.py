"""What a report is made from, and how its blocks become tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.claim_model import Claim, Verdict
from harness.records import Record
from harness.report import figures, speedups, tables
from harness.report.course import course
from harness.report.effects import effects
from harness.report.errors import errors
from harness.report.frame import Frame
from harness.report.lines import lines
from harness.report.roofline import roofline
from harness.report.roofs import roofs
from harness.report.spec import Block, Spec
from harness.report.svg import Picture
from harness.report.tables import Table
from harness.report.verdicts import verdict_table


class Findings(NamedTuple):
    """One suite's run, judged."""

    suite: str
    spec: Spec
    records: Sequence[Record]
    verdicts: Sequence[Verdict]
    environment: Mapping[str, Any]
    claims: Sequence[Claim]

    @property
    def frame(self) -> Frame:
        """Its figures, in the report's order."""
        return Frame(self.records, {key: list(names) for key, names in self.spec.names.items()})

    def blocks(self, frame: Frame) -> tuple[Block, ...]:
        """The report's blocks, those about one workload with that workload settled."""
        return tuple(_settled(block, self.spec, frame) for block in self.spec.blocks)


def _settled(block: Block, spec: Spec, frame: Frame) -> Block:
    """A block about the workload that it prefers, or where that was not run, about the first that was."""
    preferred = block.fields.get("workload")
    if not preferred:
        return block
    found = frame.values("workload", block.fields["where"])
    chosen = preferred if preferred in found or not found else found[0]
    name = spec.name("workload", chosen)
    return block._replace(
        title=block.title.format(workload=name),
        text=block.text.format(workload=name),
        fields={**block.fields, "where": {**block.fields["where"], "workload": chosen}},
    )


def table(block: Block, found: Findings, frame: Frame) -> Table | None:
    """The table that the block asks for; None where it asks for a picture."""
    made = _table(block, found, frame)
    if made is None or made.rows or block.kind in ("verdicts", "failures"):
        return made
    return made._replace(text="Nothing was recorded for this table.")


def _table(block: Block, found: Findings, frame: Frame) -> Table | None:
    if block.kind == "verdicts":
        return verdict_table(block, found.claims, found.verdicts)
    if block.kind == "table":
        return tables.pivot(block, found.spec, frame, found.claims)
    if block.kind == "effects":
        return (speedups.timed_effects if block.fields["noise"] else effects)(block, found.spec, frame)
    if block.kind == "errors":
        return errors(block, found.spec, frame)
    if block.kind == "speedups":
        return speedups.speedups(block, found.spec, frame)
    if block.kind == "beside":
        return speedups.beside(block, found.spec, frame)
    if block.kind == "roofline":
        return roofline(block, found.spec, frame)
    if block.kind == "failures":
        return tables.failures(block, found.spec, frame)
    return None


def picture(block: Block, found: Findings, frame: Frame) -> Picture | None:
    """The picture that the block asks for; None where it asks for a table, or nothing was recorded for it."""
    if block.kind == "bars":
        return figures.bars(block, found.spec, frame)
    if block.kind == "course":
        return course(block, found.spec, frame)
    if block.kind == "lines":
        return lines(block, found.spec, frame)
    if block.kind == "roofs":
        return roofs(block, found.spec, frame)
    if block.kind == "spread":
        return figures.spread(block, found.spec, frame)
    return None
