"""Choose the results that answer the paper's claims: one folder per suite, one machine per folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from harness.answers import Judged
from harness.report.report_data import ReportData
from harness.report.run_line import machine
from harness.validation import ConfigError


def judged_claims(folders: Sequence[tuple[ReportData, str]]) -> Judged:
    """Return the claims of each suite with their verdicts; raises ConfigError where folders conflict."""
    by_suite: dict[str, list[tuple[ReportData, str]]] = {}
    for data, folder in folders:
        by_suite.setdefault(data.suite, []).append((data, folder))
    return {
        f"{suite}/{claim.id}": (claim, [one for one in data.verdicts if one.claim == claim.id])
        for suite, several in by_suite.items()
        for data in [_of_one_machine(*_chosen(suite, several))]
        for claim in data.claims
    }


def _chosen(suite: str, several: Sequence[tuple[ReportData, str]]) -> tuple[ReportData, str]:
    """Return the folder named like the suite, or the only one."""
    named = [one for one in several if PurePath(one[1]).name == suite] or several
    if len(named) > 1:
        names = ", ".join(folder for _, folder in named)
        raise ConfigError(f"{names}: all have results of suite {suite}; answers need those of one folder")
    return named[0]


def _of_one_machine(data: ReportData, folder: str) -> ReportData:
    machines = sorted({machine(one) for one in data.environment.values() if isinstance(one, dict)})
    if len(machines) > 1:
        raise ConfigError(
            f"{folder}: has results of several machines ({'; '.join(machines)}); answers need one"
        )
    return data
