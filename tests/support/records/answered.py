"""A made-up claim of the paper, and its answer given made-up records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from synthetic import claim as judged_claim
from synthetic import made

from harness.claims.answers import AnsweredClaim, answer_claims
from harness.claims.evidence import Findings, MethodError
from harness.claims.judge import judge
from harness.claims.paper import PaperClaim, PublicRecord


def paper_claim(**changes: object) -> PaperClaim:
    base = PaperClaim(
        *("c", "paper", "I", "words", "It is twice as fast", (1.8, 2.2), "x", "", False, ""),
        *("It says so.", "S", (), ("invented/claim",), "", ""),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def public(decides: bool = True, **changes: object) -> PublicRecord:
    base = PublicRecord("of a GPU", "a/b, c.md", decides=decides)
    return replace(base, **changes)  # type: ignore[arg-type]


def shares(inside: int, outside: int) -> dict[str, float]:
    """Return so many published values on either side of the band 1.8 to 2.2."""
    return {f"r{i}": 2.0 if i < inside else 3.0 for i in range(inside + outside)}


def answered(
    claim: PaperClaim,
    *values: Any,
    origin: str = "measured",
    methods: tuple[MethodError, ...] = (),
    stated: dict[str, str] | None = None,
    **conditions: str,
) -> AnsweredClaim:
    """Answer a claim of 2.0 within 10 % on CUDA and what is `stated`, given values of several workloads."""
    held = judged_claim(2.0, tolerance=0.1, unit="s", conditions={"device": "cuda", **(stated or {})})
    first = held.interpretations[0]._replace(metric="time", method="", variant="fast")
    names_ = [f"w{i}" for i in range(len(values))]
    held = replace(held, interpretations=tuple(first._replace(name=one, workload=one) for one in names_))
    sampled = [value if isinstance(value, tuple) else (value,) for value in values]
    records = [
        made(name, "fast", {("time", ""): ("s", origin, samples)}, conditions=conditions)
        for name, samples in zip(names_, sampled, strict=True)
    ]
    judged_ = {"invented/claim": (held, judge([held], records))} if values else {}
    return answer_claims([claim], Findings(judged_, {}, methods))[0]
