"""The three answers at the top of a report: what pays, do the paper's figures hold, can it be believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.report.effects import effect_rows, meaning
from harness.report.errors import error_rows
from harness.report.findings import Findings
from harness.report.frame import Frame
from harness.report.spec import Block
from harness.report.tables import percent
from harness.report.verdicts import OUTCOMES, tally

SHOWN = 4
"""So many of those that pay are named at the top."""


class Card(NamedTuple):
    """A question, its answer in lines of (left, right), and the block that has the rest."""

    question: str
    lines: tuple[tuple[str, str], ...]
    remark: str
    block: str

    @property
    def answer(self) -> str:
        """In one line."""
        given = ", ".join(f"{left} {right}" for left, right in self.lines)
        return f"{given}. {self.remark}" if given else self.remark


def glance(found: Findings, frame: Frame) -> list[Card]:
    """The cards for which the report has a block."""
    cards = [_pays(found, frame), _holds(found, frame), _believe(found, frame)]
    return [card for card in cards if card is not None]


def _pays(found: Findings, frame: Frame) -> Card | None:
    block = next((b for b in found.blocks(frame) if b.kind == "effects"), None)
    if block is None:
        return None
    paying = []
    for row in effect_rows(block, frame):
        ranks = frame.condition(row.place["workload"], row.place["optimization"], "ranks")
        if ranks not in ("", "1"):
            continue
        if row.ratio is not None and meaning(row.ratio, block.fields["same_within"])[0] == "pays":
            paying.append((row.ratio, _arm(found, frame, block, row.place)))
    lines = [(name, percent(ratio - 1, True)) for ratio, name in sorted(paying)]
    rest = f"{len(lines) - SHOWN} more pay. " if len(lines) > SHOWN else ""
    remark = f"{rest}{block.title}." if lines else "Nothing was found to pay."
    return Card("What pays, and by how much?", tuple(lines[:SHOWN]), remark, block.id)


def _arm(found: Findings, frame: Frame, block: Block, place: Mapping[str, str]) -> str:
    """An arm's name with those of its conditions that are not one."""
    name = found.spec.name("optimization", place["optimization"])
    for condition, head in block.fields["conditions"].items():
        value = frame.condition(place["workload"], place["optimization"], condition)
        if value not in ("", "1"):
            name += f", {value} {head.lower()}"
    return name


def _holds(found: Findings, frame: Frame) -> Card | None:
    block = next((b for b in found.blocks(frame) if b.kind == "verdicts"), None)
    if block is None or not found.verdicts:
        return None
    counts = tally(found.verdicts)
    stated = sum(v.where == "as stated" for v in found.verdicts)
    lines = tuple((outcome, str(counts[outcome])) for outcome in OUTCOMES if outcome in counts)
    remark = f"{len(found.verdicts)} verdicts on {len(found.claims)} claims, {stated} of them as stated."
    return Card("Do the paper's figures hold?", lines, remark, block.id)


def _believe(found: Findings, frame: Frame) -> Card | None:
    block = next((b for b in found.blocks(frame) if b.kind == "errors" and b.fields["headline"]), None)
    if block is None:
        return None
    question = "Can it be believed?"
    row = next((r for r in error_rows(block, frame) if r.method == block.fields["headline"]), None)
    if row is None:
        return Card(question, (), "Nothing was measured in this run to hold its figures against.", block.id)
    lines = (
        ("off by, in the median", percent(row.median)),
        ("at worst", percent(row.worst, True)),
        ("says too little in", percent(row.under)),
        ("by at most", percent(-row.least) if row.under else "–"),
    )
    name = found.spec.name("method", row.method)
    return Card(
        question,
        lines,
        f"{name}, against real runs in {row.cells} cells. {block.fields['remark']}".strip(),
        block.id,
    )
