"""Render the answers on the paper's claims as answers.md, answers.html and answers.csv: one row per claim."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence

from harness.claims.answers import ANSWERS, AnsweredClaim, Evidence
from harness.claims.paper import PaperClaim, PublicRecord
from harness.report.output.markdown import details, escape, grid
from harness.report.output.page import render
from harness.report.tables.tables import Table, TableCell, percent
from harness.units import counted, human, marked, times

TITLE = "Do the paper's claims hold?"
HEADER = ("Claim", "Answer", "Accepted", "Its source", "Published by others", "Here")
LOOKS = {
    "confirmed": "good",
    "partly": "info",
    "contradicted": "bad",
    "misquoted": "warn",
    "plausible": "info",
    "implausible": "warn",
    "no evidence": "muted",
}
HOW_TO_READ = (
    "One row per claim of the paper and the article, with the strength of its evidence. A: values measured "
    "on its class of device, here or in public, or the source's own formula: they confirm, partly confirm or "
    "contradict. A claim is misquoted, also A, where its words state something that no version of its source "
    "known to us states. C: emulated and simulated values, and values from other devices, make a claim "
    "plausible or implausible, no more. D: no evidence, with what is missing. "
    "Published values are whatever their authors published: often best cases, under unequal conditions. "
    "Unlike things have a range each, of all values with their intervals."
)
FIELDS = (
    *("id", "by", "section", "quoted", "claim", "accepted", "source_says", "source", "misquoted"),
    *("published", "evidence", "answer", "strength", "why"),
)


def counts_line(rows: Sequence[AnsweredClaim]) -> str:
    """Return `36 claims: 3 confirmed, 4 partly, …`, and of which suites there are no results."""
    found = Counter(row.answer for row in rows)
    counts = ", ".join(f"{found[one]} {one}" for one in ANSWERS if found[one])
    text = f"{counted(len(rows), 'claim')}: {counts}."
    missing = sorted({name.partition("/")[0] for row in rows for name in row.missing})
    return f"{text} Without results of: {', '.join(missing)}." if missing else text


def answers_markdown(rows: Sequence[AnsweredClaim]) -> str:
    """Return answers.md: the counts, one table, and each claim's words and sources folded below it."""
    header = ("Claim", "By", "Answer", "Accepted", "Published by others", "Here")
    cells = tuple(
        tuple(
            TableCell(text, look="word")
            for text in (
                row.claim.claim,
                _place(row.claim),
                answer_text(row),
                accepted_text(row.claim),
                "; ".join(_published(row)),
                "; ".join(_found(row, "")),
            )
        )
        for row in rows
    )
    parts = [f"# {TITLE}", counts_line(rows), HOW_TO_READ, grid(Table("answers", TITLE, "", header, cells))]
    parts += ["## Each claim with its source", *(details(row.claim.claim, _in_full(row)) for row in rows)]
    return "\n\n".join(parts) + "\n"


def answers_page(rows: Sequence[AnsweredClaim]) -> str:
    """Return answers.html."""
    shown = [
        {
            "row": row,
            "place": _place(row.claim),
            "accepted": accepted_text(row.claim),
            "published": [
                *((public_text(one, row.claim), one.source) for one in row.claim.public),
                *((text, "memory_published") for text in _found(row, "published")),
            ],
            "evidence": _found(row, ""),
            "look": LOOKS[row.answer],
        }
        for row in rows
    ]
    return render(
        "answers.html.j2", title=TITLE, header=HEADER, rows=shown, counts=counts_line(rows), text=HOW_TO_READ
    )


def answers_csv(rows: Sequence[AnsweredClaim]) -> str:
    """Return answers.csv: a line per claim."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in rows:
        claim = row.claim
        published = "; ".join(f"{public_text(one, claim)} [{one.source}]" for one in claim.public)
        evidence = "; ".join(f"{one.claim}: {evidence_text(one, claim)}" for one in row.evidence)
        known = {"accepted": accepted_text(claim), "published": published, "evidence": evidence}
        known |= {"answer": row.answer, "strength": row.strength, "why": row.why}
        writer.writerow([known.get(name, getattr(claim, name, "")) for name in FIELDS])
    return out.getvalue()


def answer_text(row: AnsweredClaim) -> str:
    """Return the answer with its strength, and why."""
    answer = f"**{row.answer}**, {row.strength}"
    return f"{answer}: {row.why}" if row.why else answer


def _published(row: AnsweredClaim) -> list[str]:
    """Return each published record in a few words, our sums of published peaks among them."""
    return [*(shares_text(one, row.claim) for one in row.claim.public), *_found(row, "published")]


def _found(row: AnsweredClaim, origin: str) -> list[str]:
    """Return our evidence of an origin; "": of all others than published."""
    return [
        evidence_text(one, row.claim)
        for one in row.evidence
        if (one.verdicts[0].origin == "published") == (origin == "published")
    ]


def accepted_text(claim: PaperClaim) -> str:
    """Return the band that the claim accepts: `1.50× … 3.00×`, `≥ 280 GB`."""
    if claim.band is None:
        return "no number"
    low, high = claim.band
    if math.isinf(high):
        return f"≥ {_value(low, claim.unit)}"
    return (
        f"≤ {_value(high, claim.unit)}"
        if low <= 0
        else f"{_value(low, claim.unit)} … {_value(high, claim.unit)}"
    )


def public_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what others published, with n, shares and quantiles."""
    values = ", ".join(f"{name}: {_value(value, claim.unit)}" for name, value in record.values.items())
    shares = {"inside": record.inside, "below": record.below, "above": record.above}
    parts = [f"n = {record.n}"] if record.n and not values else []
    parts += [f"{100 * share:.0f} % {name}" for name, share in shares.items() if share is not None]
    parts += [f"median {_value(record.median, claim.unit)}"] if record.median is not None else []
    parts += [f"least {_value(record.least, claim.unit)}"] if record.least is not None else []
    parts += [f"{name} %: {_value(value, claim.unit)}" for name, value in record.quantiles.items()]
    text = f"{record.of}: {values or ', '.join(parts)}" if values or parts else record.of
    return f"{text} ({record.note})" if record.note else text


def shares_text(record: PublicRecord, claim: PaperClaim) -> str:
    """Return what a published record is of, in a few words, with its range or its median."""
    if record.values:
        low, high = min(record.values.values()), max(record.values.values())
        ends = (
            _value(low, claim.unit)
            if low == high
            else f"{_value(low, claim.unit)} … {_value(high, claim.unit)}"
        )
        return marked(f"{record.short}: {ends} (n = {record.n})", record.origin)
    if not record.n:
        return marked(record.of, record.origin)
    median = f"median {_value(record.median, claim.unit)} " if record.median is not None else ""
    return marked(f"{record.short}: {median}(n = {record.n})", record.origin)


def evidence_text(one: Evidence, claim: PaperClaim) -> str:
    """Return what our values are, their range and origin, and how they were obtained where that differs."""
    ratio = one.is_ratio or (one.judged.unit == "1" and claim.unit == "x")
    unit = "x" if ratio else one.judged.unit
    low, high = (times(end) if unit == "x" else _value(end, unit) for end in (one.low, one.high))
    text = (low if low == high else f"{low} … {high}") + (f" per {claim.per}" if claim.per else "")
    origin = one.verdicts[0].origin
    grade = "" if one.grade == origin else f", {one.grade}"
    group = f"{one.group}: " if one.group else ""
    return f"{group}{marked(text, origin)}{grade}"


def _value(value: float, unit: str) -> str:
    """Return a value as published or claimed; `x` is a ratio, `%` a share, `parameters`, `GPUs` counts."""
    if unit == "GPUs":
        return f"{value:g} GPUs"
    if unit == "x":
        return f"{value:,g}×"
    if unit == "%":
        return percent(value)
    return f"{value / 1e9:g} B" if unit == "parameters" else human(value, unit)


def _place(claim: PaperClaim) -> str:
    return f"{claim.by}, {claim.section}"


def _in_full(row: AnsweredClaim) -> str:
    claim = row.claim
    lines = [f"“{escape(claim.quoted)}” — {_place(claim)}", f"Accepted: {accepted_text(claim)}."]
    lines.append(
        f"Its source: {escape(claim.source_says)}{f' — {escape(claim.source)}' if claim.source else ''}"
    )
    lines += [f"Published: {escape(public_text(one, claim))} — {escape(one.source)}" for one in claim.public]
    lines += [f"Here: {evidence_text(one, claim)} (`{one.claim}`)" for one in row.evidence]
    lines.append(f"**{row.answer}**" + (f": {escape(row.why)}" if row.why else ""))
    return "\n\n".join(lines)
