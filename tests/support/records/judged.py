"""One invented claim before the judge: shared by the tests of the judge."""

from __future__ import annotations

from synthetic import made

from harness.claims.judge import judge
from harness.claims.model import Claim, Verdict
from harness.records import Record


def figure(*samples: float, origin: str = "measured", unit: str = "B", **more: object) -> Record:
    return made(figures={("bytes", "way"): (unit, origin, samples)}, **more)  # type: ignore[arg-type]


def one(held: Claim, *records: Record) -> Verdict:
    verdicts = judge([held], records)
    assert len(verdicts) == 1
    return verdicts[0]
