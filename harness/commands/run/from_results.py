"""`from_results=FOLDER`: judge and report again what was run, one folder of results or several."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.entry import print_all
from harness.commands.results import planned, results_folders
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.records import Record
    from harness.report.report_data import ReportData
    from harness.sweep.plan import Plan


def from_results(given: Mapping[str, str]) -> None:
    """Report the results in `from_results`, or write an index of several folders; raises ConfigError.

    Of a folder of results folders each report is written again, too.
    """
    listed = listed_folders(given["from_results"])
    source = listed[0]
    if len(listed) > 1 and "out" not in given:
        raise ConfigError("out: missing; from_results=[A,B] writes an index of these folders into out=FOLDER")
    out = Path(given.get("out", source))
    folders = [one for folder in listed for one in results_folders(folder) or [folder]]
    if len(listed) > 1 or folders != [source]:
        lines = index(folders, out)
        if out == source:
            lines.append(f"Reports: {write_reports(folders)}, one in each folder")
        print_all(lines)
    else:
        report(source, out, given.get("suite", ""), given.get("show") == "all")


def listed_folders(text: str) -> list[Path]:
    """Return the folders of `A` or of `[A,B]`; raises ConfigError where there is none."""
    several = text.startswith("[") and text.endswith("]") and not Path(text).exists()
    names = [one.strip() for one in text[1:-1].split(",")] if several else [text]
    if not all(names):
        raise ConfigError(f"from_results={text}: expected a folder of results, or several: [A,B]")
    return [Path(name) for name in dict.fromkeys(names)]


def report(source: Path, out: Path, suite_name: str = "", everything: bool = False) -> None:
    """Judge the results in `source`, write their report into `out` and print the end of it.

    `everything`: print every table, not only the answer's. Raises ConfigError where `suite_name` is another
    suite than that of the results.
    """
    from harness.report import write_report
    from harness.report.output.terminal import show
    from harness.sweep.store import copy_run

    report_data = judged(source)
    if suite_name not in ("", report_data.suite):
        raise ConfigError(f"suite={suite_name}: {source} holds results of suite {report_data.suite}")
    copy_run(source, out)
    page = write_report(out, report_data)
    show(report_data, page, everything=everything)


def write_reports(folders: Sequence[Path]) -> int:
    """Write the report of each results folder into it; return how many; raises ConfigError."""
    from harness.report import write_report

    for folder in folders:
        write_report(folder, judged(folder))
    return len(folders)


def judged(source: Path) -> ReportData:
    """Return the data of a report on the results in `source`, judged; raises ConfigError."""
    from harness.claims.judge import judge
    from harness.claims.load import load_claims
    from harness.claims.one_machine import of_one_machine
    from harness.report import gather

    plan, recorded = load_run(source)
    records, apart = of_one_machine(recorded)
    verdicts = judge(load_claims(plan.suite), records)
    return gather(plan.suite, records, verdicts, source, plan.titles, plan.left_out, apart)


def index(folders: Sequence[Path], out: Path, without_answers: bool = False) -> list[str]:
    """Write the index of results folders into `out`, and the answers on the paper's claims; return where.

    Raises ConfigError, before anything is written, where results do not go together: two folders of one
    claim, two machines. `without_answers`: then the list of results alone is written.
    """
    from harness.report import write_index

    results = [(judged(folder), Path(os.path.relpath(folder, out)).as_posix()) for folder in folders]
    try:
        page = write_index(out, results)
        return [f"Answers on the paper's claims: {page}", f"Its tables: {page.with_name('tables.html')}"]
    except ConfigError as conflict:
        if not without_answers:
            raise
        listed = write_index(out, results, without_answers=True)
        return [f"Index: {listed}", f"No answers on the paper's claims: {conflict}"]


def load_run(folder: Path) -> tuple[Plan, list[Record]]:
    """Return the last plan of a results folder, and its records in that order."""
    from harness.config.run import names
    from harness.sweep.plan import read_plan
    from harness.sweep.store import read_records

    plan = read_plan(folder)
    if plan.suite not in names("suite"):
        allowed = ", ".join(names("suite"))
        raise ConfigError(f"{folder}: holds results of suite {plan.suite!r}; allowed: {allowed}")
    return plan, planned(folder, read_records(folder))
