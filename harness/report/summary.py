"""Answer three questions at the top of a report: what pays, which claims hold, is it trustworthy?"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.claims.model import Verdict
from harness.records import Record, Status
from harness.report.block_tables import error_rows
from harness.report.comparison import noise_of
from harness.report.findings import answer, answer_block
from harness.report.report_data import ReportData
from harness.report.results import ResultIndex
from harness.report.spec import EffectsBlock, ErrorsBlock
from harness.report.tables import percent
from harness.report.verdicts import count_outcomes
from harness.units import counted

PAYS = "What pays, and by how much?"
CLAIMS = "Do the claims hold?"
TRUST = "Can the numbers be trusted?"

NEEDS_GPU = re.compile(r"\bGPUs?\b|\bCUDA\b", re.IGNORECASE)


class SummaryCard(NamedTuple):
    """A question, and its answer in lines of (left, right)."""

    question: str
    lines: tuple[tuple[str, str], ...]
    remark: str

    @property
    def answer(self) -> str:
        """Return the answer in one line, after its question where it is no sentence."""
        given = ", ".join(f"{left} {right}" for left, right in self.lines)
        return f"{self.question} {given.capitalize()}. {self.remark}".strip() if given else self.remark


def summary(data: ReportData) -> list[SummaryCard]:
    """Return the cards for which the report has a block."""
    cards = [_pays(data), _claims(data), _trust(data)]
    return [card for card in cards if card is not None]


def _pays(data: ReportData) -> SummaryCard | None:
    block = answer_block(data) or next((one for one in data.blocks if isinstance(one, EffectsBlock)), None)
    sentences = answer(data)
    return SummaryCard(PAYS, (), " ".join(sentences)) if block is not None and sentences else None


def _claims(data: ReportData) -> SummaryCard | None:
    if all(verdict.outcome == "unavailable" for verdict in data.verdicts):
        return None
    return SummaryCard(CLAIMS, (), f"{CLAIMS} {claims_line(data.verdicts, data.records)}")


def claims_line(verdicts: Sequence[Verdict], records: Iterable[Record]) -> str:
    """Return on how many claims there is a verdict, how many have only context, and what the rest needs."""
    by_claim: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_claim.setdefault(verdict.claim, []).append(verdict)
    judged = [some for some in by_claim.values() if any(one.where == "as stated" for one in some)]
    without = [some for some in by_claim.values() if all(one.outcome == "unavailable" for one in some)]
    if len(without) == len(by_claim):
        return "No claim could be compared with this run."
    context = len(by_claim) - len(judged) - len(without)
    outcomes = count_outcomes(one for some in judged for one in some if one.where == "as stated")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    of = counted(len(by_claim), "claim")
    text = f"{len(judged)} of {of} could be judged here{f' ({counts})' if counts else ''}."
    if context:
        text += f" {counted(context, 'has', 'have')} values under other conditions, as context."
    if without:
        reasons = {record.cell.id: record.reason for record in records if record.status != Status.OK}
        gpu = sum(any(_needs_gpu(one, reasons) for one in some) for some in without)
        text += f" {counted(len(without), 'has', 'have')} no value here"
        text += f", {gpu} of them for lack of a GPU." if gpu else "."
    return text


def _needs_gpu(verdict: Verdict, reasons: Mapping[str, str]) -> bool:
    return bool(NEEDS_GPU.search(reasons.get(verdict.cell, "")) or NEEDS_GPU.search(verdict.reason))


def cells_line(records: Sequence[Record]) -> str:
    """Return how many cells have a result, how many failed, and how many need what this machine lacks."""
    ended = [record.status for record in records]
    well = ended.count(Status.OK)
    text = f"{counted(well, 'cell has', 'cells have')} a result."
    lacking = [record for record in records if record.status == Status.UNAVAILABLE]
    gpu = sum(bool(NEEDS_GPU.search(record.reason)) for record in lacking)
    failed = {s: ended.count(s) for s in Status if s not in (Status.OK, Status.UNAVAILABLE) and s in ended}
    if failed:
        named = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in failed.items())
        text += f" Failed: {named}."
    if gpu:
        text += f" {counted(gpu, 'needs', 'need')} a GPU."
    if len(lacking) > gpu:
        one = "does not apply to its workload or lacks a library here"
        more = "do not apply to their workload or lack a library here"
        text += f" {counted(len(lacking) - gpu, one, more)}."
    return text


def _trust(data: ReportData) -> SummaryCard | None:
    block = next((b for b in data.blocks if isinstance(b, ErrorsBlock) and b.headline), None)
    if block is None:
        timed = next((b for b in data.blocks if isinstance(b, EffectsBlock) and b.noise), None)
        return None if timed is None else _noise(data.index, timed)
    row = next((r for r in error_rows(block, data.index) if r.method == block.headline), None)
    if row is None:
        remark = "No cell of this run has a measured value yet with which an estimate can be compared."
        return SummaryCard(TRUST, (), remark)
    lines = (
        ("median |error|", percent(row.median)),
        ("worst error", percent(row.worst, True)),
        ("underestimates in", percent(row.under)),
        ("worst underestimate", percent(row.lowest, True) if row.under else "–"),
        *([("worst single sample", percent(row.worst_sample, True))] if row.several else []),
    )
    name = data.spec.name("method", row.method)
    remark = f"{name}, compared with real runs in {counted(row.cells, 'cell')}. {block.headline_note}"
    return SummaryCard(TRUST, lines, remark.strip())


def _noise(index: ResultIndex, block: EffectsBlock) -> SummaryCard:
    """Return by how much the baseline differs from itself, over all workloads with both."""
    noises = [noise for w in index.names("workload", {}) if (noise := noise_of(index, w, block.pairing))]
    if not noises:
        remark = (
            "The baseline was not timed against itself in this run, so differences cannot be separated from "
            "noise."
        )
        return SummaryCard(TRUST, (), remark)
    off = [max(one.value, 1 / one.value) - 1 for one in noises]
    apart = sum(not one.low <= 1 <= one.high for one in noises)
    lines = (
        ("baseline against itself, median", percent(statistics.median(off))),
        ("worst", percent(max(off))),
        ("judged different", f"{apart} of {len(noises)}"),
    )
    processes = sorted({one.processes for one in noises})
    fewest = f"{processes[0]} to " if len(processes) > 1 else ""
    count = fewest + counted(processes[-1], "process", "processes")
    remark = (
        f"The same code as two variants on {counted(len(noises), 'workload')}, in {count} each; at 95 % one "
        "in twenty is expected to be judged different by chance."
    )
    return SummaryCard(TRUST, lines, remark)
