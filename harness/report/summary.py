"""Tell of a run in a few lines: what pays, which claims hold, is it trustworthy; on what machine, when."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.claims.model import Verdict
from harness.records import Record, Status
from harness.report.block_tables import error_rows
from harness.report.comparison import noise_of
from harness.report.report_data import ReportData
from harness.report.results import ResultIndex
from harness.report.spec import EffectsBlock, ErrorsBlock
from harness.report.tables import NEEDS_GPU, failure_reason, percent
from harness.report.verdicts import count_outcomes
from harness.units import counted

_MINUTE, _HOUR = 60, 3600


def run_line(records: Sequence[Record], environment: Mapping[str, Any]) -> str:
    """Return `2 cores AMD EPYC · 25 GB · no GPU · torch 2.13.0 · 21 Nov 2026, 2 h 5 min · commit 599e4c9`."""
    when = ", ".join(part for part in (days(records), run_time(records)) if part)
    commits = ", ".join(_distinct(str(one.get("commit", ""))[:7] for one in _known(environment)))
    commit = commits and f"commit {commits}"
    return " · ".join(part for part in (machines(environment), when, commit) if part)


def machines(environment: Mapping[str, Any]) -> str:
    """Return the machines of a run in words."""
    return "; ".join(_distinct(machine(one) for one in _known(environment)))


def machine(environment: Mapping[str, Any]) -> str:
    """Return a machine in words, with torch's version; what the environment does not state is left out."""
    cores = counted(environment["cores"], "core") if environment.get("cores") else ""
    torch = environment.get("versions", {}).get("torch")
    gpus = ", ".join(f"{count} × {name}" for name, count in _gpus(environment).items()) or "no GPU"
    parts = [
        f"{cores} {environment.get('cpu', '')}".strip(),
        f"{environment['memory_B'] / 1e9:.0f} GB" if environment.get("memory_B") else "",
        gpus if "gpus" in environment else "",
        f"torch {torch}" if torch else "",
    ]
    return " · ".join(filter(None, parts))


def _gpus(environment: Mapping[str, Any]) -> Counter[str]:
    return Counter(str(gpu["name"]) for gpu in environment.get("gpus", ()))


def device(environment: Any) -> str:
    """Return the GPUs of a machine, or its processor where it has none; "" where it was not kept."""
    if not isinstance(environment, Mapping):
        return ""
    gpus = (f"{count} × {name}" if count > 1 else name for name, count in _gpus(environment).items())
    return ", ".join(gpus) or " ".join(str(environment.get("cpu", "")).split())


def days(records: Iterable[Record]) -> str:
    """Return the day on which the cells ran, or the first and the last."""
    spans = _spans(records)
    if not spans:
        return ""
    first, last = (f"{day.day} {day:%b} {day.year}" for day in (spans[0][0], spans[-1][0]))
    return first if first == last else f"{first} to {last}"


def run_time(records: Iterable[Record]) -> str:
    """Return how long the cells ran, without the pauses between sweeps."""
    spans = _spans(records)
    if not spans:
        return ""
    ran, end = timedelta(), spans[0][0]
    for begin, until in spans:
        ran += max(until - max(begin, end), timedelta())
        end = max(end, until)
    return duration(ran.total_seconds())


def _spans(records: Iterable[Record]) -> list[tuple[datetime, datetime]]:
    begins = [
        (datetime.fromisoformat(record.started_at).astimezone(UTC), timedelta(seconds=record.duration_s))
        for record in records
        if record.started_at
    ]
    return sorted((begin, begin + length) for begin, length in begins)


def _known(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in environment.values() if isinstance(one, Mapping)]


def duration(seconds: float) -> str:
    """Return `2 h 5 min`, `13 min` or `40 s`."""
    if seconds < _MINUTE:
        return f"{max(round(seconds), 1)} s"
    hours, minutes = divmod(round(seconds / _MINUTE), _HOUR // _MINUTE)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def wrong_results(records: Iterable[Record], name: Any) -> list[str]:
    """Return what gave a wrong result, a sentence for those alike; `name`: titles by key and name.

    It gives the first reason of each, and in how many processes it was wrong, where not in all.
    """
    of_pair: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        of_pair.setdefault((record.cell.workload, record.cell.optimization), []).append(record)
    alike: dict[tuple[str, str], list[str]] = {}
    for (workload, variant), processes in of_pair.items():
        reasons = [failure_reason(one) for one in processes if one.status == Status.WRONG_RESULT]
        if reasons:
            others = len(set(reasons)) - 1
            reason = reasons[0] + (f" (and {counted(others, 'other reason')})" if others else "")
            part = f" ({len(reasons)} of {len(processes)} processes)" if len(reasons) < len(processes) else ""
            key = name("optimization", variant), reason
            alike.setdefault(key, []).append(name("workload", workload) + part)
    return [f"{variant} on {'; '.join(where)}: {reason}" for (variant, reason), where in alike.items()]


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def summary(data: ReportData) -> list[str]:
    """Return whether the claims hold, and whether the numbers can be trusted, where the report has either."""
    held = []
    if any(verdict.outcome != "unavailable" for verdict in data.verdicts):
        held = [f"Do the claims hold? {claims_line(data.verdicts, data.records)}"]
    return [*held, *_trust(data)]


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
        told = ([f"{reasons.get(one.cell, '')} {one.reason}" for one in some] for some in without)
        gpu = sum(any(map(NEEDS_GPU.search, some)) for some in told)
        text += f" {counted(len(without), 'has', 'have')} no value here"
        text += f", {gpu} of them for lack of a GPU." if gpu else "."
    return text


def cells_line(records: Sequence[Record]) -> str:
    """Return how many cells have a result, how many failed, and how many need what this machine lacks."""
    ended = Counter(record.status for record in records)
    text = f"{counted(ended[Status.OK], 'cell has', 'cells have')} a result."
    failed = [s for s in Status if s not in (Status.OK, Status.UNAVAILABLE) and s in ended]
    if failed:
        named = ", ".join(f"{ended[status]} {status.replace('_', ' ')}" for status in failed)
        text += f" Failed: {named}."
    lacking = [record for record in records if record.status == Status.UNAVAILABLE]
    gpu = sum(bool(NEEDS_GPU.search(record.reason)) for record in lacking)
    if gpu:
        text += f" {counted(gpu, 'needs', 'need')} a GPU."
    if len(lacking) > gpu:
        one = "does not apply to its workload or lacks a library here"
        more = "do not apply to their workload or lack a library here"
        text += f" {counted(len(lacking) - gpu, one, more)}."
    return text


def _trust(data: ReportData) -> list[str]:
    block = next((b for b in data.blocks if isinstance(b, ErrorsBlock) and b.headline), None)
    if block is None:
        timed = next((b for b in data.blocks if isinstance(b, EffectsBlock) and b.noise), None)
        return [_noise(data.index, timed)] if timed else []
    row = next((r for r in error_rows(block, data.index) if r.method == block.headline), None)
    if row is None:
        return ["No cell of this run has a measured value yet with which an estimate can be compared."]
    name, cells = data.spec.name("method", row.method), counted(len(row.each), "cell")
    figures = {
        "median |error|": percent(row.median),
        "worst error": percent(row.worst, True),
        "underestimates in": percent(row.under),
        "worst underestimate": percent(row.lowest, True) if row.under else "–",
        **({"worst single sample": percent(row.worst_sample, True)} if row.several else {}),
    }
    return [_trusted(figures, f"{name}, compared with real runs in {cells}. {block.headline_note}")]


def _trusted(figures: Mapping[str, str], remark: str) -> str:
    given = ", ".join(f"{name} {figure}" for name, figure in figures.items())
    return f"Can the numbers be trusted? {given.capitalize()}. {remark}".strip()


def _noise(index: ResultIndex, block: EffectsBlock) -> str:
    """Return by how much the baseline differs from itself, over all workloads with both."""
    noises = [noise for w in index.names("workload", {}) if (noise := noise_of(index, w, block.pairing))]
    if not noises:
        lacking = "not timed against itself in this run, so differences cannot be separated from noise"
        return f"The baseline was {lacking}."
    off = [max(one.value, 1 / one.value) - 1 for one in noises]
    apart = sum(not one.low <= 1 <= one.high for one in noises)
    figures = {
        "baseline against itself, median": percent(statistics.median(off)),
        "worst": percent(max(off)),
        "judged different": f"{apart} of {len(noises)}",
    }
    fewest, most = (end(one.processes for one in noises) for end in (min, max))
    count = (f"{fewest} to " if fewest < most else "") + counted(most, "process", "processes")
    remark = (
        f"The same code as two variants on {counted(len(noises), 'workload')}, in {count} each; at 95 % one "
        "in twenty is expected to be judged different by chance."
    )
    return _trusted(figures, remark)
