"""The three answers at the top of a report: what pays, do the paper's figures hold, can it be believed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from harness.report.compared import compared, noise_of
from harness.report.effects import effect_rows, meaning
from harness.report.errors import error_rows
from harness.report.findings import Findings
from harness.report.frame import Frame
from harness.report.spec import Block
from harness.report.tables import percent
from harness.report.verdicts import OUTCOMES, tally
from harness.units import times

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
    block = _best_recorded([b for b in found.blocks(frame) if b.kind in ("effects", "speedups")], frame)
    if block is None:
        return None
    paying = (_faster if block.fields["noise"] else _less)(found, frame, block)
    lines = [(name, text) for _, name, text in sorted(paying)]
    rest = f"{len(lines) - SHOWN} more pay. " if len(lines) > SHOWN else ""
    remark = f"{rest}{block.title}." if lines else "Nothing was found to pay."
    return Card("What pays, and by how much?", tuple(lines[:SHOWN]), remark, block.id)


def _best_recorded(blocks: Sequence[Block], frame: Frame) -> Block | None:
    """The first of the blocks that has a figure in this run, or else the first."""
    for block in blocks:
        if frame.values("workload", block.fields["where"], block.fields["metric"]):
            return block
    return blocks[0] if blocks else None


def _less(found: Findings, frame: Frame, block: Block) -> list[tuple[float, str, str]]:
    """Those that lower the figure, on as many ranks as the baseline: the ratio to it, the variant, the
    change."""
    paying = []
    for row in effect_rows(block, frame):
        workload, variant = row.place["workload"], row.place["optimization"]
        if frame.condition(workload, variant, "ranks") != frame.condition(
            workload, block.fields["baseline"], "ranks"
        ):
            continue
        if row.ratio is not None and meaning(row.ratio, block.fields["same_within"])[0] == "pays":
            paying.append((row.ratio, found.spec.name("optimization", variant), percent(row.ratio - 1, True)))
    return paying


def _faster(found: Findings, frame: Frame, block: Block) -> list[tuple[float, str, str]]:
    """Those that are faster beyond the noise: their time over the baseline's, the variant, the speed-up."""
    paying = []
    workloads = frame.values("workload", block.fields["where"])
    for workload in workloads:
        for variant in frame.values("optimization", block.fields["where"]):
            one = compared(frame, workload, variant, block.fields)
            if one is not None and one.word == "pays" and variant != block.fields["noise"]:
                name = found.spec.name("optimization", variant)
                if len(workloads) > 1:
                    name += f", {found.spec.name('workload', workload)}"
                paying.append((1 / one.speed_up.value, name, times(one.speed_up.value)))
    return paying


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
    question = "Can it be believed?"
    block = next((b for b in found.blocks(frame) if b.kind == "errors" and b.fields["headline"]), None)
    if block is None:
        timed = next((b for b in found.blocks(frame) if b.kind == "effects" and b.fields["noise"]), None)
        return None if timed is None else _noise(frame, timed, question)
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


def _noise(frame: Frame, block: Block, question: str) -> Card:
    """What the baseline differs by from itself, over every workload on which it was timed twice."""
    found = [noise for w in frame.values("workload", {}) if (noise := noise_of(frame, w, block.fields))]
    if not found:
        remark = (
            "The baseline was not timed against itself in this run: no difference can be told from noise."
        )
        return Card(question, (), remark, block.id)
    off = [max(one.value, 1 / one.value) - 1 for one in found]
    apart = sum(not one.low <= 1 <= one.high for one in found)
    lines = (
        ("the baseline against itself, in the median", percent(statistics.median(off))),
        ("at worst", percent(max(off))),
        ("held to differ", f"{apart} of {len(found)}"),
    )
    processes = sorted({one.processes for one in found})
    count = f"{processes[0]}" if len(processes) == 1 else f"{processes[0]} to {processes[-1]}"
    remark = (
        f"The same code as two variants on {len(found)} workloads, in {count} processes each; at 95 % one in "
        "twenty may be held to differ by chance."
    )
    return Card(question, lines, remark, block.id)
