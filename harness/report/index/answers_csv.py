"""Write the answers as answers.csv: a line per claim."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from harness.claims.answers import AnsweredClaim
from harness.report.index.answers_text import accepted_text, evidence_text, public_text

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
