"""Answer three questions at the top of a report: what pays, which claims hold, is it trustworthy?"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.claim_model import Verdict
from harness.optimizations import AGAIN
from harness.records import Record, Status
from harness.report.errors import error_rows
from harness.report.report_data import ReportData
from harness.report.result_index import ResultIndex
from harness.report.spec import DEFAULT_BLOCKS, ReportBlock
from harness.report.speedup import Comparison, compared, noise_of
from harness.report.tables import percent
from harness.report.verdicts import count_outcomes
from harness.units import counted, times

SHOWN = 4
"""So many of those that pay are named in the summary."""

PAYS = "What pays, and by how much?"
CLAIMS = "Do the claims hold?"
TRUST = "Can the numbers be trusted?"

NEEDS_GPU = re.compile(r"\bGPUs?\b|\bCUDA\b", re.IGNORECASE)


class SummaryCard(NamedTuple):
    """A question, its answer in lines of (left, right), and the block that has the rest."""

    question: str
    lines: tuple[tuple[str, str], ...]
    remark: str
    block: str

    @property
    def answer(self) -> str:
        """Return the answer in one line."""
        given = ", ".join(f"{left} {right}" for left, right in self.lines)
        return f"{given}. {self.remark}".strip() if given else self.remark


def summary(data: ReportData) -> list[SummaryCard]:
    """Return the cards for which the report has a block."""
    cards = [_pays(data), _claims(data), _trust(data)]
    return [card for card in cards if card is not None]


def _pays(data: ReportData) -> SummaryCard | None:
    if data.spec.blocks == DEFAULT_BLOCKS:
        return _pays_by_metric(data)
    kinds = ("effects", "speedups")
    blocks = [b for b in data.blocks if b.kind in kinds and b.fields.get("better", "lower") == "lower"]
    block = _best_recorded(blocks, data.index)
    if block is None:
        return None
    paying = _paying(data, block)
    lines = [(name, text) for _, name, text in sorted(paying)]
    rest = f"{counted(len(lines) - SHOWN, 'more pays', 'more pay')}. " if len(lines) > SHOWN else ""
    remark = (
        f"{rest}{block.title}."
        if lines
        else _none_pays(data.index, block, f"No variant pays. {block.title}.")
    )
    return SummaryCard(PAYS, tuple(lines[:SHOWN]), remark, block.id)


def _pays_by_metric(data: ReportData) -> SummaryCard | None:
    """Return what pays in each metric, first in those that are better lower or higher."""
    blocks = [block for block in data.blocks if block.kind == "effects"]
    blocks.sort(key=lambda block: block.fields["better"] == "neither")
    sentences = [one for block in blocks if (one := _of_metric(data, block))]
    if not sentences:
        return None
    rest = len(sentences) - SHOWN
    more = [f"The tables show {counted(rest, 'more metric')}."] if rest > 0 else []
    return SummaryCard(PAYS, (), " ".join([*sentences[:SHOWN], *more]), blocks[0].id)


def _of_metric(data: ReportData, block: ReportBlock) -> str:
    """Return in a sentence what pays in a metric; of one without a better direction, what changes it most."""
    if block.fields["better"] == "neither":
        changes = [(abs(one.ratio.value - 1), name, _size(one)) for name, one in _comparisons(data, block)]
        change, name, text = max(changes, default=(0.0, "", ""))
        unjudged = "not judged, since its unit does not say whether less is better"
        return f"{block.title}: up to {text} ({name}), {unjudged}." if change else ""
    paying = sorted(_paying(data, block))
    if not paying:
        return f"{block.title}: {_none_pays(data.index, block, 'no variant pays.')}"
    if block.fields["better"] == "higher":
        paying.reverse()
    _, name, text = paying[0]
    rest = len(paying) - 1
    more = f", and {counted(rest, 'more pays', 'more pay')}" if rest else ""
    return f"{block.title}: {name} {text}{more}."


def _none_pays(index: ResultIndex, block: ReportBlock, none: str) -> str:
    """Return the sentence `none` for no variant that pays, or why none could be compared."""
    fields, baseline = block.fields, block.fields["baseline"]
    alike = [
        index.condition(workload, variant, "ranks") == index.condition(workload, baseline, "ranks")
        for workload in index.names("workload", fields["where"])
        for variant in index.names("optimization", fields["where"])
        if variant not in (baseline, fields["noise"]) and compared(index, workload, variant, fields)
    ]
    if not alike:
        return "No variant could be compared with the baseline."
    if not any(alike):
        return "Every variant runs on other ranks than the baseline: see the table, which does not rank them."
    return none


def _best_recorded(blocks: Sequence[ReportBlock], index: ResultIndex) -> ReportBlock | None:
    """Return the first of the blocks that has a value in this run, or else the first."""
    for block in blocks:
        if index.names("workload", block.fields["where"], block.fields["metric"]):
            return block
    return blocks[0] if blocks else None


def _paying(data: ReportData, block: ReportBlock) -> list[tuple[float, str, str]]:
    """Return the variants that pay, on as many ranks as the baseline: the ratio, the name, the change."""
    pays = "costs" if block.fields.get("better") == "higher" else "pays"  # an effect is that of a time
    comparisons = [one for one in _comparisons(data, block) if one[1].effect == pays]
    return [(comparison.ratio.value, name, _size(comparison)) for name, comparison in comparisons]


def _comparisons(data: ReportData, block: ReportBlock) -> Iterator[tuple[str, Comparison]]:
    """Yield each variant that runs on as many ranks as the baseline: its name, and how it compares."""
    fields, index, spec = block.fields, data.index, data.spec
    workloads = index.names("workload", fields["where"])
    for workload in workloads:
        ranks = index.condition(workload, fields["baseline"], "ranks")
        for variant in index.names("optimization", fields["where"]):
            comparison = compared(index, workload, variant, fields)
            ours = variant not in (fields["baseline"], fields["noise"], AGAIN)
            if comparison and ours and index.condition(workload, variant, "ranks") == ranks:
                name = spec.name("optimization", variant)
                name += f", {spec.name('workload', workload)}" if len(workloads) > 1 else ""
                yield name, comparison


def _size(comparison: Comparison) -> str:
    return (
        times(comparison.speed_up.value)
        if comparison.unit == "s"
        else percent(comparison.ratio.value - 1, True)
    )


def _claims(data: ReportData) -> SummaryCard | None:
    block = next((b for b in data.blocks if b.kind == "verdicts"), None)
    if block is None or not data.verdicts:
        return None
    compared_ = [verdict for verdict in data.verdicts if verdict.outcome != "unavailable"]
    lines = tuple((outcome, str(count)) for outcome, count in count_outcomes(compared_).items())
    return SummaryCard(CLAIMS, lines, claims_line(data.verdicts, data.records), block.id)


def claims_line(verdicts: Sequence[Verdict], records: Iterable[Record]) -> str:
    """Return how many interpretations could be compared, under whose conditions, and what the rest needs."""
    compared_ = [verdict for verdict in verdicts if verdict.outcome != "unavailable"]
    stated = sum(verdict.where == "as stated" for verdict in compared_)
    reasons = {record.cell.id: record.reason for record in records if record.status != Status.OK}
    rest = [verdict for verdict in verdicts if verdict.outcome == "unavailable"]
    gpu = sum(bool(NEEDS_GPU.search(reasons.get(one.cell, ""))) or _names_a_gpu(one) for one in rest)
    have = "has" if len(compared_) == 1 else "have"
    text = (
        f"{len(compared_)} of {counted(len(verdicts), 'interpretation')} {have} a value here, {stated} of "
        "them under the claim's own conditions."
    )
    parts = [f"{counted(gpu, 'needs', 'need')} a GPU"] if gpu else []
    parts += (
        [f"{counted(len(rest) - gpu, 'was not run or has', 'were not run or have')} no value"]
        if len(rest) > gpu
        else []
    )
    return f"{text} {' and '.join(parts)}." if parts else text


def _names_a_gpu(verdict: Verdict) -> bool:
    return bool(NEEDS_GPU.search(verdict.reason))


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
    block = next((b for b in data.blocks if b.kind == "errors" and b.fields["headline"]), None)
    if block is None:
        timed = next((b for b in data.blocks if b.kind == "effects" and b.fields["noise"]), None)
        return None if timed is None else _noise(data.index, timed)
    row = next((r for r in error_rows(block, data.index) if r.method == block.fields["headline"]), None)
    if row is None:
        remark = "No cell of this run has a measured value yet with which an estimate can be compared."
        return SummaryCard(TRUST, (), remark, block.id)
    lines = (
        ("median |error|", percent(row.median)),
        ("worst error", percent(row.worst, True)),
        ("underestimates in", percent(row.under)),
        ("worst underestimate", percent(row.lowest, True) if row.under else "–"),
    )
    name = data.spec.name("method", row.method)
    remark = (
        f"{name}, compared with real runs in {counted(row.cells, 'cell')}. {block.fields['headline_note']}"
    )
    return SummaryCard(TRUST, lines, remark.strip(), block.id)


def _noise(index: ResultIndex, block: ReportBlock) -> SummaryCard:
    """Return by how much the baseline differs from itself, over all workloads with both."""
    noises = [noise for w in index.names("workload", {}) if (noise := noise_of(index, w, block.fields))]
    if not noises:
        remark = (
            "The baseline was not timed against itself in this run, so differences cannot be separated from "
            "noise."
        )
        return SummaryCard(TRUST, (), remark, block.id)
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
    return SummaryCard(TRUST, lines, remark, block.id)
