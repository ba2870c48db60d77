"""Export what each variant does, one row per comparison with the baseline: effects.csv.

Write the answers as answers.csv: a line per claim.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from harness.claims.answers import AnsweredClaim
from harness.report.data.speedup import compared
from harness.report.index.answers_text import accepted_text, evidence_text, public_text
from harness.report.report_data import ReportData


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
        if block.kind not in ("effects", "speedups"):
            continue
        fields = block.fields
        metric, method, baseline = place = fields["metric"], fields["method"], fields["baseline"]
        if place in seen:
            continue
        seen.add(place)
        for workload, variant in index.cells:
            base, ours = (index.get(workload, one, metric, method) for one in (baseline, variant))
            comparison = compared(index, workload, variant, fields)
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
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in rows:
        claim = row.claim
        published = "; ".join(f"{public_text(one, claim)} [{one.source}]" for one in claim.public)
        evidence = "; ".join(f"{one.claim}: {evidence_text(one, claim)}" for one in row.evidence)
        known = {"accepted": accepted_text(row), "published": published, "evidence": evidence}
        known |= {"answer": row.answer, "strength": row.strength, "why": row.why}
        known["would_decide"] = row.would_decide
        writer.writerow([known.get(name, getattr(claim, name, "")) for name in FIELDS])
    return out.getvalue()
