"""Write a judged run as report.md, figures, report.html, and the data next to them.

The layout of benchmark.json is that of pytest-benchmark 5 (`Metadata.as_dict` and
`pytest_benchmark_generate_json` there), for its `compare` and plots. So are the statistics, written here once
more, so that records give the same bytes whichever of its versions is installed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
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

FORMAT = "5.1.0"  # the version of pytest-benchmark whose layout this is


def benchmark_json(suite: str, index: ResultIndex, environment: Mapping[str, Any]) -> str:
    """Return the file, "" where nothing was timed: a group per workload, its baseline first, no wrong result.

    `environment`: as stored, by its digest; that of the newest record is written.
    """
    wrong = wrong_variants(index.records)
    benchmarks = [
        _benchmark(suite, *place, method, samples, records[0])
        for place, records in index.cells.items()
        for method, samples in _samples(records if place not in wrong else ()).items()
    ]
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
    q1, q3 = (float(end) for end in np.quantile(ordered, (0.25, 0.75), method="hazen"))
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    within = [value for value in ordered if low <= value <= high]
    beyond = sum(not mean - deviation <= value <= mean + deviation for value in samples)
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
        "iqr_outliers": count - len(within),
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{count - len(within)}",
        "ld15iqr": within[0],
        "hd15iqr": within[-1],
        "ops": count / total,
        "total": total,
    }


def _samples(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return by method all rounds of all repeats that ended well."""
    samples: dict[str, list[float]] = {}
    for record in records:
        for one in record.measurements if record.status == Status.OK else ():
            if one.metric == "time" and one.samples:
                samples.setdefault(one.method, []).extend(one.samples)
    return samples


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
        if not isinstance(block, EffectsBlock | SpeedupsBlock) or block.pairing[:3] in seen:
            continue
        metric, method, baseline = block.pairing[:3]
        seen.add((metric, method, baseline))
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
        known = {
            "accepted": accepted_text(row),
            "published": "; ".join(f"{public_text(one, claim)} [{one.source}]" for one in claim.public),
            "evidence": "; ".join(f"{one.claim}: {evidence_text(one, claim)}" for one in row.evidence),
        }
        of_row = {name: getattr(row, name) for name in ("answer", "strength", "why", "would_decide")}
        lines.append({name: getattr(claim, name, "") for name in FIELDS} | known | of_row)
    return pd.DataFrame(lines, columns=list(FIELDS)).to_csv(index=False, lineterminator="\n")


def write_suite(folder: Path, data: ReportData) -> Path:
    """Write the report of one suite into `folder`, next to its records.jsonl; return the page's path.

    The same data give the same bytes, figures under the same version of matplotlib.
    """
    from harness.report import page

    layout = arrange(data)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    earlier = (path.name for path in (folder / "figures").glob("*.svg"))
    texts = {f"figures/{name}": "" for name in earlier}  # which are removed, unless drawn again
    texts |= {f"figures/{name}": figure.file() for name, figure in layout.figures.items()} | {
        "report.md": markdown.report(data, layout),
        "verdicts.json": verdicts_json(data.claims, data.verdicts),
        "measurements.csv": measurements_csv(data.records),
        "effects.csv": effects_csv(data),
        "benchmark.json": benchmark_json(data.suite, data.index, data.environment),
        "report.html": page.suite_page(data, layout),
    }
    _write(folder, texts)
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
    tables = paper_tables(asked, rows) if rows else []
    texts = {
        "index.md": index_markdown(answers),
        "index.html": index_page(answers),
        "tables.md": tables_markdown(tables) if tables else "",
        "tables.html": tables_page(tables) if tables else "",
        "answers.csv": answers_csv(rows) if rows else "",
        "figures/answers.svg": figure.file() if figure else "",
    }
    _write(folder, texts)
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


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write each file, or remove an earlier report's where there is nothing to write."""
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        else:
            (folder / name).unlink(missing_ok=True)
