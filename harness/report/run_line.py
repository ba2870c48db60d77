"""Describe a run in one line: the machine in words, the date, how long it took, the commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.records import Record, Status
from harness.report.tables import failure_reason
from harness.units import counted

_MINUTE, _HOUR = 60, 3600


def run_line(records: Sequence[Record], environment: Mapping[str, Any]) -> str:
    """Return `2 cores AMD EPYC · 25 GB · no GPU · torch 2.13.0 · 21 Nov 2026, 2 h 5 min · commit 599e4c9`."""
    when = ", ".join(part for part in (days(records), run_time(records)) if part)
    commits = _distinct(str(one.get("commit", ""))[:7] for one in _known(environment))
    commit = f"commit {', '.join(commits)}" if commits else ""
    return " · ".join(part for part in (machines(environment), when, commit) if part)


def machines(environment: Mapping[str, Any]) -> str:
    """Return the machines of a run in words."""
    return "; ".join(_distinct(machine(one) for one in _known(environment)))


def machine(environment: Mapping[str, Any]) -> str:
    """Return a machine in words, with torch's version; what the environment does not state is left out."""
    cpu = " ".join(
        str(part)
        for part in (
            counted(environment["cores"], "core") if environment.get("cores") else "",
            environment.get("cpu", ""),
        )
        if part
    )
    parts = [cpu, f"{environment['memory_B'] / 1e9:.0f} GB" if environment.get("memory_B") else ""]
    if "gpus" in environment:
        names = [str(gpu["name"]) for gpu in environment["gpus"]]
        several = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
        parts.append(", ".join(several) or "no GPU")
    torch = environment.get("versions", {}).get("torch")
    parts.append(f"torch {torch}" if torch else "")
    return " · ".join(part for part in parts if part)


def device(environment: Any) -> str:
    """Return the GPUs of a machine, or its processor where it has none; "" where it was not kept."""
    if not isinstance(environment, Mapping):
        return ""
    names = [str(gpu["name"]) for gpu in environment.get("gpus", ())]
    several = [f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in names]
    processor = " ".join(str(environment.get("cpu", "")).split())
    return ", ".join(dict.fromkeys(several)) or processor


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
    """Return when each cell began and ended, in order."""
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
        if not reasons:
            continue
        others = len(set(reasons)) - 1
        more = f" (and {counted(others, 'other reason')})" if others else ""
        share = "" if len(reasons) == len(processes) else f" ({len(reasons)} of {len(processes)} processes)"
        key = name("optimization", variant), reasons[0] + more
        alike.setdefault(key, []).append(name("workload", workload) + share)
    return [f"{variant} on {'; '.join(where)}: {reason}" for (variant, reason), where in alike.items()]


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]
