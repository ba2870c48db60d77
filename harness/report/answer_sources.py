"""Choose the results that answer the paper's claims: one folder per claim, one machine per folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from harness.answers import Judged
from harness.claim_model import Claim, Verdict
from harness.report.report_data import ReportData
from harness.report.run_line import machine
from harness.validation import ConfigError


def judged_claims(folders: Sequence[tuple[ReportData, str]]) -> Judged:
    """Return the claims of each suite with their verdicts; raises ConfigError where folders conflict.

    The folder named like the suite counts. Where it has no value for a claim, another folder with one does;
    so does another one with a value under the claim's own conditions, such as a GPU's, where it has none.
    Of several others, those count of which the fewest conditions differ.
    """
    by_suite: dict[str, list[tuple[ReportData, str]]] = {}
    for data, folder in folders:
        by_suite.setdefault(data.suite, []).append((data, folder))
    return {
        f"{suite}/{claim.id}": (claim, _verdicts(suite, claim, several))
        for suite, several in by_suite.items()
        for claim in several[0][0].claims
    }


def _verdicts(suite: str, claim: Claim, several: Sequence[tuple[ReportData, str]]) -> list[Verdict]:
    named = [one for one in several if PurePath(one[1]).name == suite]
    with_value = [one for one in several if _has_value(claim, one[0])]
    as_stated = [one for one in with_value if _has_value(claim, one[0], where="as stated")]
    with_value = as_stated or with_value
    chosen = [one for one in named if one in with_value] or with_value or named or several[:1]
    if len(chosen) > 1:
        least = min(_least_differing(claim, data) for data, _ in chosen)
        chosen = [one for one in chosen if _least_differing(claim, one[0]) == least]
    if len(chosen) > 1:
        names = ", ".join(folder for _, folder in chosen)
        raise ConfigError(f"{names}: all have results of suite {suite}; answers need those of one folder")
    data, folder = chosen[0]
    machines = sorted({machine(one) for one in data.environment.values() if isinstance(one, dict)})
    if len(machines) > 1:
        raise ConfigError(
            f"{folder}: has results of several machines ({'; '.join(machines)}); answers need one"
        )
    return _of(claim, data)


def _has_value(claim: Claim, data: ReportData, where: str | None = None) -> bool:
    return any(one.ours is not None and where in (None, one.where) for one in _of(claim, data))


def _least_differing(claim: Claim, data: ReportData) -> int:
    """Return in how many conditions the value that differs least was not taken as the claim states."""
    return min((len(one.differs) for one in _of(claim, data) if one.ours is not None), default=0)


def _of(claim: Claim, data: ReportData) -> list[Verdict]:
    return [one for one in data.verdicts if one.claim == claim.id]
