"""A training log to medians over its steady steps; conf/frameworks/logs.yaml says what frameworks print."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import median, quantiles
from typing import Any, NamedTuple

from harness.frameworks.table import yaml_tree
from harness.instruments.transformer import CONVENTIONS
from harness.question import Question

FIRST = 10
"""Lines at the start that are left out at most: warm-up, compilation, the allocator's growth."""

SHARE = 4
"""At most one in so many lines is left out at the start."""

Readings = Mapping[str, float]
"""By metric: step_s, tokens_per_s and FLOP_per_s (per device), tokens_per_s_all, mfu, memory_B, ..."""

ANSI = re.compile(r"\x1b\[[0-9;]*m")

PRINTED = {"NUMBER": r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)", "SHORT": r"([-\d.e]+[KMBGTPE]?)(?= \||$)"}
"""Patterns of numbers by their names in the YAML."""

LETTERS = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


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
    convention: str | None  # how the framework counts FLOPs
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
    for name, log in yaml_tree("logs").items():
        if not re.search(log["own"], text):
            continue
        by_metric: dict[str, list[float]] = {}
        for readings in _readings(name, text):
            for metric, value in readings.items():
                by_metric.setdefault(metric, []).append(value)
        if not by_metric:
            continue
        steady = {metric: _steady(values) for metric, values in by_metric.items()}
        left_out = max(_left_out(values) for values in by_metric.values())
        metrics, notes = _derived(name, steady, question)
        printed = bool({"step_s", "bar_step_s"} & steady.keys())
        return OwnLog(name, metrics, left_out, CONVENTIONS.get(name), tuple(notes), printed)
    known = ", ".join(yaml_tree("logs"))
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


def _readings(name: str, text: str) -> Iterator[Readings]:
    """Yield the readings of a framework's log, one after the other; see conf/frameworks/logs.yaml."""
    for records in yaml_tree("logs")[name]["records"]:
        fields = {metric: one for metric, one in records.items() if metric not in ("mark", "between")}
        for part in re.split(records.get("between", r"[\r\n]"), text):
            record = " ".join(part.split())
            if re.search(records["mark"], record):
                yield _of_record(record, fields)
    if name in MORE:
        yield from MORE[name](text)


def _of_record(record: str, fields: Mapping[str, tuple[str, float]]) -> Readings:
    readings = {}
    for metric, (pattern, scale) in fields.items():
        for name, number in PRINTED.items():
            pattern = pattern.replace(name, number)
        if found := re.search(pattern, record):
            readings[metric] = _number(next(one for one in found.groups() if one)) * scale
    rate = readings.pop("steps_per_s", 0.0)
    return readings | ({"step_s": 1 / rate} if rate else {})


def _number(text: str) -> float:
    """Return a printed number, also with commas for thousands, or a letter."""
    return float(text.rstrip("".join(LETTERS)).replace(",", "")) * LETTERS.get(text[-1], 1.0)


def _mlperf(text: str) -> Iterator[Readings]:
    """Yield samples/s and seconds per step between MLPerf's block events."""
    batch, start, samples = 0.0, 0.0, 0.0
    for found in re.finditer(r":::MLLOG\s*(\{.*\})", text):
        try:
            event: dict[str, Any] = json.loads(found.group(1))
        except json.JSONDecodeError:
            continue
        key, value, meta = event.get("key"), event.get("value"), event.get("metadata") or {}
        if key == "global_batch_size" and isinstance(value, int | float):
            batch = float(value)
        if key == "tracked_stats" and isinstance(value, dict):
            if value.get("train_step_time"):
                yield {"step_s": float(value["train_step_time"])}
            if value.get("throughput"):
                yield {"samples_per_s_all": float(value["throughput"])}
        count = meta.get("samples_count", meta.get("epoch_num"))
        if key == "block_start" and isinstance(count, int | float):
            start, samples = float(event.get("time_ms", 0)), float(count)
        if key == "block_stop" and start and isinstance(count, int | float) and count > samples:
            seconds = (float(event.get("time_ms", 0)) - start) * 1e-3
            if seconds > 0:
                rate = (float(count) - samples) / seconds
                yield {"samples_per_s_all": rate} | ({"step_s": batch / rate} if batch else {})
            start = 0.0


BAR = re.compile(r"^(.*?)\s*\d+%\|[^|]*\|\s*(\d+)/(\d+) \[[\d:]+<[\d:?]+,\s*([\d.]+)(s/it|it/s)")
"""A progress bar of tqdm, with what it says before."""


def _progress_bar(text: str) -> Iterator[Readings]:
    """Yield the seconds per step of Trainer's progress bar.

    Other bars say what they are of, as "Loading checkpoint shards:", or have another length.
    """
    found = [bar for line in re.split(r"[\r\n]", text) if (bar := BAR.search(line))]
    bars = [bar.groups()[2:] for bar in found if not _is_of_another(bar.group(1))]
    lengths = Counter(length for length, _, _ in bars)
    for length, printed, unit in bars:
        value = float(printed)
        if value and length == lengths.most_common(1)[0][0]:
            yield {"bar_step_s": value if unit == "s/it" else 1 / value}


def _is_of_another(before: str) -> bool:
    """Return whether what stands before a bar names what it counts; launchers name the stream or the rank."""
    return before.rstrip().endswith(":") and not re.search(r"(?:stdout|stderr|\]|\d):\s*$", before)


MORE: Mapping[str, Callable[[str], Iterator[Readings]]] = {"mlperf": _mlperf, "hugging_face": _progress_bar}
"""What needs more than patterns."""
