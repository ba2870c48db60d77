"""Write a judged run as report.md, figures, report.html, and the data next to them.

The layout of benchmark.json is that of pytest-benchmark 5 (`Metadata.as_dict` and
`pytest_benchmark_generate_json` there), for its `compare` and plots. The statistics are its definitions,
written here once more, so that the same records give the same bytes whichever of its versions is installed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from harness.claims.answers import AnsweredClaim
from harness.claims.model import Claim, Verdict
from harness.claims.paper import PaperClaims
from harness.records import Record, Status, wrong_variants
from harness.report import markdown
from harness.report.comparison import compared
from harness.report.index.answers_text import accepted_text, evidence_text, public_text
from harness.report.markdown import arrange
from harness.report.report_data import ReportData
from harness.report.results import ResultIndex, measurements_csv
from harness.report.spec import EffectsBlock, SpeedupsBlock
from harness.report.verdicts import judged

FORMAT = "5.1.0"
"""The version of pytest-benchmark whose layout this is."""

TIMED = "time"
"""The metric that it exports; in seconds per call."""


def benchmark_json(suite: str, index: ResultIndex, environment: Mapping[str, Any]) -> str:
    """Return the file, "" where nothing was timed: a group per workload, its baseline first, no wrong result.

    `environment`: as stored, by its digest; that of the newest record is written.
    """
    benchmarks = []
    wrong = wrong_variants(index.records)
    for (workload, variant), records in index.cells.items():
        if (workload, variant) in wrong:
            continue
        for method in _methods(records):
            samples = _samples(records, method)
            if samples:
                benchmarks.append(_benchmark(suite, workload, variant, method, samples, records[0]))
    if not benchmarks:
        return ""
    newest = max(index.records, key=lambda record: (record.started_at, record.cell.id))
    kept = environment.get(newest.environment)
    kept = kept if isinstance(kept, dict) else {}
    data = {
        "machine_info": _machine(kept),
        "commit_info": _commit(kept),
        "benchmarks": sorted(benchmarks, key=lambda one: (one["group"], one["param"] != "baseline")),
        "datetime": newest.started_at,
        "version": FORMAT,
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _benchmark(
    suite: str, workload: str, variant: str, method: str, samples: Sequence[float], record: Record
) -> dict[str, Any]:
    return {
        "group": f"{workload} ({method})" if method else workload,
        "name": f"{workload}[{variant}]",
        "fullname": f"{suite}/{workload}[{variant}]" + (f"({method})" if method else ""),
        "params": {"optimization": variant},
        "param": variant,
        "extra_info": dict(record.conditions),
        "options": {},
        "stats": {**stats(samples), "iterations": 1},
    }


def stats(samples: Sequence[float]) -> dict[str, Any]:
    """Return pytest-benchmark's statistics of seconds per call; at least one sample, each above zero."""
    ordered, count = sorted(samples), len(samples)
    mean, total = statistics.mean(samples), sum(samples)
    deviation = statistics.stdev(samples) if count > 1 else 0
    q1, q3 = _quartiles(ordered)
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    beyond = sum(not mean - deviation <= value <= mean + deviation for value in samples)
    outside = sum(not low <= value <= high for value in samples)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": count,
        "median": statistics.median(samples),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{outside}",
        "ld15iqr": next((value for value in ordered if value >= low), ordered[0]),
        "hd15iqr": next((value for value in reversed(ordered) if value <= high), ordered[-1]),
        "ops": count / total,
        "total": total,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Return its quartiles: of an even number the halves' medians, of an odd one between two samples."""
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])
    n, rest = divmod(count, 4)
    if rest == 1:
        low, high = ordered[n - 1 : n + 1], ordered[3 * n : 3 * n + 2]
        return 0.25 * low[0] + 0.75 * low[1], 0.75 * high[0] + 0.25 * high[1]
    low, high = ordered[n : n + 2], ordered[3 * n + 1 : 3 * n + 3]
    return 0.75 * low[0] + 0.25 * low[1], 0.25 * high[0] + 0.75 * high[1]


def _methods(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(m.method for r in records for m in r.measurements if m.metric == TIMED))


def _samples(records: Sequence[Record], method: str) -> list[float]:
    """Return all rounds of all repeats that ended well."""
    return [
        value
        for record in records
        if record.status == Status.OK
        for one in record.measurements
        if (one.metric, one.method) == (TIMED, method)
        for value in one.samples
    ]


def _machine(kept: Mapping[str, Any]) -> dict[str, Any]:
    system, _, rest = str(kept.get("system", "")).partition(" ")
    release, _, machine = rest.rpartition(" ")
    return {
        "node": "",
        "processor": kept.get("cpu", ""),
        "machine": machine,
        "python_implementation": "CPython",
        "python_version": kept.get("python", ""),
        "release": release,
        "system": system,
        "cpu": {"brand_raw": kept.get("cpu", ""), "count": kept.get("cores", 0)},
        "gpus": kept.get("gpus", []),
        "versions": kept.get("versions", {}),
    }


def _commit(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": kept.get("commit", "") or "unversioned",
        "time": None,
        "author_time": None,
        "dirty": bool(kept.get("dirty")),
        "project": "throughput-harness",
        "branch": "(unknown)",
    }


def effects_csv(data: ReportData) -> str:
    """Return every comparison that the report's effects are made of, over all workloads; "" without one.

    `ratio` is the variant's value over the baseline's; `low` and `high` are its 95 % interval where `basis`
    is pairs. Values are medians in base units.
    """
    rows = list(_rows(data))
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n") if rows else ""


def _rows(data: ReportData) -> Iterator[dict[str, Any]]:
    index, seen = data.index, set()
    for block in data.blocks:
        if not isinstance(block, EffectsBlock | SpeedupsBlock):
            continue
        metric, method, baseline = place = block.pairing[:3]
        if place in seen:
            continue
        seen.add(place)
        for workload, variant in index.cells:
            base, ours = (index.get(workload, one, metric, method) for one in (baseline, variant))
            comparison = compared(index, workload, variant, block.pairing)
            if variant == baseline or base is None or ours is None or comparison is None:
                continue
            ratio = comparison.ratio
            yield {
                "workload": workload,
                "variant": variant,
                "metric": metric,
                "method": method,
                "unit": ours.unit,
                "value": ours.median,
                "baseline_value": base.median,
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "basis": ratio.basis,
                "processes": ratio.processes,
                "effect": comparison.effect,
                "origin": ours.origin,
            }


FIELDS = (
    *("id", "by", "part", "section", "quoted", "claim", "accepted", "source_says", "source", "misquoted"),
    *("published", "evidence", "answer", "strength", "why", "would_decide", "do"),
)


def answers_csv(rows: Sequence[AnsweredClaim]) -> str:
    """Return answers.csv."""
    lines = []
    for row in rows:
        claim = row.claim
        published = "; ".join(f"{public_text(one, claim)} [{one.source}]" for one in claim.public)
        evidence = "; ".join(f"{one.claim}: {evidence_text(one, claim)}" for one in row.evidence)
        known = {"accepted": accepted_text(row), "published": published, "evidence": evidence}
        known |= {"answer": row.answer, "strength": row.strength, "why": row.why}
        known["would_decide"] = row.would_decide
        lines.append([known.get(name, getattr(claim, name, "")) for name in FIELDS])
    return pd.DataFrame(lines, columns=list(FIELDS)).to_csv(index=False, lineterminator="\n")


def write_suite(folder: Path, data: ReportData) -> Path:
    """Write the report of one suite into `folder`, next to its records.jsonl; return the page's path.

    The same data give the same bytes, figures under the same version of matplotlib.
    """
    from harness.report import page

    layout = arrange(data)
    figures = layout.figures
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for path in (folder / "figures").glob("*.svg"):
        if path.name not in figures:  # drawn by an earlier report
            path.unlink()
    for name, figure in figures.items():
        _write(folder / "figures" / name, figure.file())
    _write(folder / "report.md", markdown.report(data, layout))
    _write(folder / "verdicts.json", verdicts_json(data.claims, data.verdicts))
    _write(folder / "measurements.csv", measurements_csv(data.records))
    _write_or_remove(folder / "effects.csv", effects_csv(data))
    _write_or_remove(folder / "benchmark.json", benchmark_json(data.suite, data.index, data.environment))
    _write(folder / "report.html", page.suite_page(data, layout))
    return folder / "report.html"


def write_index(
    folder: Path, asked: PaperClaims, rows: Sequence[AnsweredClaim], folders: Sequence[tuple[ReportData, str]]
) -> Path:
    """Write index.html, index.md, tables.*, answers.csv and figures/answers.svg; return the page's path.

    `folders`: results folders, given by name. Without `rows` there is the list of these alone.
    """
    from harness.report.index.answers_page import (
        Answers,
        index_markdown,
        index_page,
        paper_tables,
        tables_markdown,
        tables_page,
    )
    from harness.report.index.forest import forest
    from harness.report.index.suite_index import index_rows

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    figure = forest(rows)
    answers = Answers(asked, rows, figure, index_rows(folders))
    _write(folder / "index.md", index_markdown(answers))
    _write(folder / "index.html", index_page(answers))
    tables = paper_tables(asked, rows) if rows else []
    _write_or_remove(folder / "tables.md", tables_markdown(tables) if tables else "")
    _write_or_remove(folder / "tables.html", tables_page(tables) if tables else "")
    _write_or_remove(folder / "answers.csv", answers_csv(rows) if rows else "")
    _write_or_remove(folder / "figures/answers.svg", figure.file() if figure else "")
    return folder / "index.html"


def verdicts_json(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> str:
    """Return every verdict with what its claim quotes, what the source says, and its sentence."""
    rows = []
    for one in judged(claims, verdicts):
        claim = one.claim
        quoted = {
            "quoted": claim.quoted,
            "quoted_by": claim.quoted_by,
            "quoted_value": claim.value,
            "quoted_upper": claim.upper,
            "relation": claim.relation,
            "accepted": [end if math.isfinite(end) else None for end in claim.accepted],
            "source_says": claim.source_says,
            "source": claim.source,
            "provenance": claim.provenance,
            "caveats": claim.caveats,
        }
        for verdict in one.verdicts:
            fields = asdict(verdict)
            fields["differs"] = [difference._asdict() for difference in verdict.differs]
            fields["steps"] = [step._asdict() for step in verdict.steps]
            rows.append(fields | quoted | {"sentence": one.sentence(verdict)})
    return json.dumps({"schema": 2, "verdicts": rows}, indent=1, ensure_ascii=False) + "\n"


def _write_or_remove(path: Path, text: str) -> None:
    """Write the file, or remove an earlier report's where there is nothing to write."""
    if text:
        _write(path, text)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
