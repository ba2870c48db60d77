"""List results folders: the question, the finding in a few words, when and where.

Choose the results that answer the claims: one folder per interpretation, one machine per folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import NamedTuple

from harness.claims.evidence import Findings, Judged, MethodError, Obtained
from harness.claims.judge import judge
from harness.claims.model import Claim, Verdict
from harness.claims.paper import Method
from harness.claims.values import HALVES, half_of
from harness.config.validation import ConfigError
from harness.records import measurement, without_wrong
from harness.report.findings import finding
from harness.report.markdown import escape
from harness.report.report_data import ReportData
from harness.report.summary import days, device, machine, machines, wrong_results
from harness.report.tables import Table, word

HEADER = ("Question", "Finding", "Date", "Machine", "Results")


class IndexRow(NamedTuple):
    """One results folder in the index."""

    folder: str
    question: str
    finding: str
    date: str
    machine: str
    wrong: int


def index_rows(folders: Sequence[tuple[ReportData, str]]) -> list[IndexRow]:
    """Return a row per results folder, given with its name, in their order."""
    return [
        IndexRow(
            folder=name,
            question=data.spec.title,
            finding=finding(data),
            date=days(data.records),
            machine=machines(data.environment),
            wrong=len(wrong_results(data.records, data.spec.name)),
        )
        for data, name in folders
    ]


def report_links(folders: Sequence[str], rows: Sequence[IndexRow]) -> list[tuple[str, str]]:
    """Return each results folder with what a link to its report says: its question.

    Where several of these have one question, the machine and the day are with it.
    """
    known = {row.folder: row for row in rows}
    asked = Counter(known[folder].question for folder in folders if folder in known)

    def text_of(row: IndexRow) -> str:
        several = asked[row.question] > 1
        return f"{row.question} ({_device(row.machine)}, {row.date})" if several else row.question

    return [(one, text_of(known[one]) if one in known else "report") for one in folders]


def _device(machine: str) -> str:
    """Return the GPUs of a machine in words, or its processor where it has none."""
    parts = machine.split(" · ")
    return next((part for part in parts if " × " in part), parts[0])


def runs_table(rows: Sequence[IndexRow]) -> Table:
    """Return the list of results folders."""
    lines = []
    for row in rows:
        wrong = f" ({row.wrong} wrong)" if row.wrong else ""
        link = f"[{escape(row.folder)}]({row.folder}/report.md)"
        lines.append(tuple(map(word, (row.question, row.finding + wrong, row.date, row.machine, link))))
    return Table("index", "", "", HEADER, tuple(lines))


def findings(folders: Sequence[tuple[ReportData, str]], methods: Sequence[Method]) -> Findings:
    """Return all that the results of these folders say; raises ConfigError where folders conflict."""
    runs = {
        record.cell.id: Obtained(folder, device(data.environment.get(record.environment, {})), days([record]))
        for data, folder in folders
        for record in data.records
    }
    return Findings(judged_claims(folders), runs, [_error(folders, method) for method in methods])


def halves(folders: Sequence[tuple[ReportData, str]], methods: Sequence[Method]) -> list[Findings]:
    """Return what each half of the processes of these results says, judged anew.

    A half of few processes may have no interval; its values count as they are.
    """

    def of_half(data: ReportData, which: int) -> ReportData:
        records = half_of(data.records, which)
        return replace(data, records=records, verdicts=judge(data.claims, records, points=True))

    return [
        findings([(of_half(data, which), folder) for data, folder in folders], methods) for which in HALVES
    ]


def _error(folders: Sequence[tuple[ReportData, str]], method: Method) -> MethodError:
    """Return a method's relative errors out of sample, on its workloads and under its conditions."""
    errors = [
        error
        for data, _ in folders
        if data.suite == method.suite
        for record in without_wrong(data.records)
        if fnmatchcase(record.cell.workload, method.workload or "*")
        and all(record.conditions.get(name) == value for name, value in method.conditions.items())
        and (one := measurement(record, method.metric, method.method)) is not None
        for error in one.samples
    ]
    return MethodError(
        method.name, method.predicts, method.origin, method.known_from, errors, tuple(method.metrics)
    )


def judged_claims(folders: Sequence[tuple[ReportData, str]]) -> Judged:
    """Return the claims of each suite with their verdicts; raises ConfigError where folders conflict.

    Each interpretation of a claim has the verdict of one folder: the one with a value that was found under
    the claim's own conditions, such as a GPU's, else with any. Of several the one named like the suite
    counts, else the one of which the fewest conditions differ.
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
    by_interpretation: dict[str, list[tuple[Verdict, int]]] = {}
    for number, (data, _) in enumerate(several):
        for one in data.verdicts:
            if one.claim == claim.id:
                by_interpretation.setdefault(one.interpretation, []).append((one, number))
    named = [PurePath(folder).name == suite for _, folder in several]

    def rank(one: Verdict, number: int) -> tuple[bool, bool, bool, int]:
        has_value = one.ours is not None
        return not has_value, one.where != "as stated", not named[number], len(one.differs) * has_value

    found, used = [], set[int]()
    for candidates in by_interpretation.values():
        best = min(rank(*one) for one in candidates)
        chosen = [one for one in candidates if rank(*one) == best]
        of_folders = sorted({number for _, number in chosen})
        if len(of_folders) > 1 and (chosen[0][0].ours is not None or not any(named)):
            names = ", ".join(several[number][1] for number in of_folders)
            raise ConfigError(f"{names}: all have results of suite {suite}; answers need those of one folder")
        found += [one for one, number in chosen if number == of_folders[0]]
        used.add(of_folders[0])
    for number in sorted(used):
        data, folder = several[number]
        machines = sorted({machine(one) for one in data.environment.values() if isinstance(one, dict)})
        if len(machines) > 1:
            raise ConfigError(
                f"{folder}: has results of several machines ({'; '.join(machines)}); answers need one"
            )
    return found
