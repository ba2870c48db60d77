"""Each answer by the committed results could have been another: made-up records in their place turn it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.claims.answers import FEWEST, MISQUOTED, answer_claims
from harness.claims.evidence import Findings
from harness.claims.model import Claim, Verdict
from harness.claims.paper import PaperClaim, load_answers
from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.report.index.suite_index import findings, halves

ASKED = load_answers()


@pytest.fixture(scope="module")
def found() -> tuple[Findings, list[Findings]]:
    reference = ROOT / "results/reference"
    folders = [(judged(path.parent), path.parent.name) for path in sorted(reference.glob("*/plan.json"))]
    return findings(folders, ASKED.methods), halves(folders, ASKED.methods)


def value(band: tuple[float, float], inside: bool) -> float:
    """Return a value well inside a band, or well outside."""
    low, high = band
    if inside:
        if math.isinf(high):
            return 1.5 * low
        return high / 1.5 if low <= 0 else math.sqrt(low * high)
    return 3 * high if math.isfinite(high) else low / 3


def moved(findings_: Findings, inside: bool) -> Findings:
    """Return the findings with every value on one side of its claim's band, of three workloads each."""

    def of(claim: Claim, verdicts: Sequence[Verdict]) -> tuple[Claim, list[Verdict]]:
        new = value(claim.accepted, inside)
        interpretations, made = [], []
        for one, verdict in zip(claim.interpretations, verdicts, strict=True):
            for i in range(FEWEST):
                name = f"{one.name} {i}"
                interpretations.append(one._replace(name=name, workload=f"{one.workload} {i}"))
                values = {} if verdict.ours is None else {"ours": new, "low": new, "high": new, "steps": ()}
                made.append(replace(verdict, interpretation=name, **values))
        return replace(claim, interpretations=tuple(interpretations)), made

    return replace(
        findings_, judged={name: of(claim, verdicts) for name, (claim, verdicts) in findings_.judged.items()}
    )


def with_public(claim: PaperClaim, inside: bool) -> PaperClaim:
    """Return the claim with three published values of each record on one side of its band."""
    if claim.band is None:
        return claim
    new = value(claim.band, inside)
    records = tuple(
        replace(one, values={f"{name} {i}": new for name in one.values for i in range(FEWEST)})
        for one in claim.public
    )
    return replace(claim, public=records, misquoted="")


@pytest.mark.parametrize("claim", ASKED.claims, ids=lambda claim: claim.id)
def test_made_up_records_turn_each_answer(claim: PaperClaim, found: tuple[Findings, list[Findings]]) -> None:
    (today,) = answer_claims([claim], *found)
    counted = any(one.context or one.decides for one in today.evidence)
    published = claim.band and any(one.values and not one.own for one in claim.public)
    if not counted and not published:
        assert today.answer in ("no evidence", MISQUOTED), "an answer without any value"
        return
    words = {}
    for inside in (True, False):
        results, parts = found
        (row,) = answer_claims(
            [replace(with_public(claim, inside), misquoted="")],
            moved(results, inside),
            [moved(part, inside) for part in parts],
        )
        words[inside] = row.answer
    assert words[True] != words[False]
    assert words[True] in ("confirmed", "plausible")
    assert words[False] in ("contradicted", "implausible", "undecided")


def test_two_runs_do_not_give_a_claim_two_answers(found: tuple[Findings, list[Findings]]) -> None:
    """The results of one hour may leave open what the committed ones decide; they never say otherwise."""
    words = []
    for folder in ("results/reference", "results/hour"):
        plans = sorted((ROOT / folder).glob("*/plan.json"))
        runs = [(judged(one.parent), one.parent.name) for one in plans]
        parts = halves(runs, ASKED.methods)
        rows = answer_claims(ASKED.claims, findings(runs, ASKED.methods), parts)
        words.append({one.claim.id: one.answer for one in rows})
    open_ = {"undecided", "no evidence"}
    differ = {
        name: (word, words[1][name])
        for name, word in words[0].items()
        if word != words[1][name] and not open_ & {word, words[1][name]}
    }
    assert not differ
