"""A training log to medians over its steady steps."""

from __future__ import annotations

import re
from statistics import median, quantiles
from typing import NamedTuple

from harness.frameworks.logs.lines import ANSI, READERS
from harness.instruments.transformer.flop import FlopConvention, convention_of
from harness.question import Question

FIRST = 10
"""Lines at the start that are left out at most: warm-up, compilation, the allocator's growth."""

SHARE = 4
"""At most one in so many lines is left out at the start."""


class Steady(NamedTuple):
    """A metric over the steady lines of a log."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    lines: int


class OwnLog(NamedTuple):
    """What a log says. Rates are per device unless their name ends in _all."""

    framework: str
    metrics: dict[str, Steady]  # step_s, tokens_per_s, FLOP_per_s, mfu, memory_B, ...
    left_out: int  # lines at the start
    convention: FlopConvention | None  # how the framework counts FLOPs
    notes: tuple[str, ...]
    step_s_printed: bool = True  # else it follows from another metric and the question's batch

    def value(self, metric: str) -> float | None:
        """Return a metric's median; None where the log has none."""
        found = self.metrics.get(metric)
        return found.median if found else None


def read_log(text: str, question: Question | None = None) -> OwnLog:
    """Return the medians of a log over its steady lines.

    `question`: the run that gave it, from which tokens and seconds follow where the log prints one of them.
    Raises ValueError with one line where no step of a known framework is in the text.
    """
    text = ANSI.sub("", text)
    for name, (pattern, reader) in READERS.items():
        if not re.search(pattern, text):
            continue
        by_metric: dict[str, list[float]] = {}
        for readings in reader(text):
            for metric, value in readings.items():
                by_metric.setdefault(metric, []).append(value)
        if not by_metric:
            continue
        steady = {metric: _steady(values) for metric, values in by_metric.items()}
        left_out = max(_left_out(values) for values in by_metric.values())
        metrics, notes = _derived(name, steady, question)
        printed = bool({"step_s", "bar_step_s"} & steady.keys())
        return OwnLog(name, metrics, left_out, convention_of(name), tuple(notes), printed)
    known = ", ".join(READERS)
    raise ValueError(f"no step of a known framework is in the log; known are {known}: {_what(text)}"[:300])


def _what(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it is empty"
    if any("out of memory" in line for line in lines):
        return "it ends in an out-of-memory message; give it as oom="
    return f"its first line is {lines[0][:60]!r}"


def _left_out(values: list[float]) -> int:
    return min(FIRST, len(values) // SHARE)


def _steady(values: list[float]) -> Steady:
    kept = values[_left_out(values) :]
    low, _, high = quantiles(kept, n=4, method="inclusive") if len(kept) > 1 else (kept[0],) * 3
    return Steady(median(kept), low, high, len(kept))


def _derived(
    name: str, steady: dict[str, Steady], question: Question | None
) -> tuple[dict[str, Steady], list[str]]:
    """Return the metrics with those that follow from the set-up, and what was taken for granted."""
    found, notes = dict(steady), []
    if "step_s" not in found and "bar_step_s" in found:
        found["step_s"] = found.pop("bar_step_s")
        notes.append("seconds per step are the progress bar's, a moving average that includes logging")
    if question is None:
        known = {"tokens_per_s", "tokens_per_s_all"} & found.keys()
        return found, notes + ([] if known else ["config= is missing: tokens per step are not known"])
    try:
        ranks = question.dp_of()
        sequences = question.micro_batch_size * question.micro_batches() * ranks
    except ValueError as error:
        return found, [*notes, str(error)]
    devices = ranks * question.model_ranks
    tokens = sequences * (question.seq_len or 0)
    if "step_s" not in found:
        for metric, work in (
            ("tokens_per_s", tokens / devices),
            ("tokens_per_s_all", tokens),
            ("samples_per_s_all", sequences),
        ):
            if metric in found and work:
                found["step_s"] = _inverse(found[metric], work)
                notes.append(f"seconds per step follow from {metric} and {sequences} sequences per step")
                break
    if "tokens_per_s" not in found and "step_s" in found and tokens:
        found["tokens_per_s"] = _inverse(found["step_s"], tokens / devices)
        notes.append(f"tokens/s per device follow from {tokens:,} tokens per step on {devices} devices")
    return found, notes


def _inverse(one: Steady, work: float) -> Steady:
    return Steady(work / one.median, work / one.high, work / one.low, one.lines)
