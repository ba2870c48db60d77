"""`python -m harness suite=NAME`: config, sweep, judge, report, in that order.

`from_results=FOLDER`: judge and report again what was run, one folder of results or several.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.entry import BROKEN_CELL, DONE, print_all
from harness.commands.grammar import planned, results_folders
from harness.config.run import check_show, load, names
from harness.config.validation import ConfigError, by_key
from harness.records import Record, Status
from harness.sweep.plan import Plan, read_plan
from harness.sweep.progress import announce
from harness.sweep.store import copy_run, read_records, turn
from harness.sweep.sweep import planned_sweep, stages, sweep, total_line

if TYPE_CHECKING:
    from harness.report.report_data import ReportData


def from_results(given: Mapping[str, str]) -> None:
    """Report the results in `from_results`, or write an index of several folders; raises ConfigError.

    Of a folder of results folders each report is written again, too.
    """
    text = given["from_results"]
    several = text.startswith("[") and text.endswith("]") and not Path(text).exists()
    names = [one.strip() for one in text[1:-1].split(",")] if several else [text]
    if not all(names):
        raise ConfigError(f"from_results={text}: expected a folder of results, or several: [A,B]")
    listed = [Path(name) for name in dict.fromkeys(names)]
    source = listed[0]
    if len(listed) > 1 and "out" not in given:
        raise ConfigError("out: missing; from_results=[A,B] writes an index of these folders into out=FOLDER")
    out = Path(given.get("out", source))
    folders = [one for folder in listed for one in results_folders(folder) or [folder]]
    if len(listed) > 1 or folders != [source]:
        lines = index(folders, out)
        if out == source:
            from harness.report import write_report

            for folder in folders:
                write_report(folder, judged(folder))
            lines.append(f"Reports: {len(folders)}, one in each folder")
        print_all(lines)
    else:
        report(source, out, given.get("suite", ""), given.get("show") == "all")


def report(source: Path, out: Path, suite_name: str = "", everything: bool = False) -> None:
    """Judge the results in `source`, write their report into `out` and print the end of it.

    `everything`: print every table, not only the answer's. Raises ConfigError where `suite_name` is another
    suite than that of the results.
    """
    from harness.report import write_report
    from harness.report.terminal import show

    report_data = judged(source)
    if suite_name not in ("", report_data.suite):
        raise ConfigError(f"suite={suite_name}: {source} holds results of suite {report_data.suite}")
    copy_run(source, out)
    page = write_report(out, report_data)
    show(report_data, page, everything=everything)


def judged(source: Path) -> ReportData:
    """Return the data of a report on the results in `source`, judged; raises ConfigError."""
    from harness.claims.judge import judge
    from harness.claims.load import load_claims
    from harness.claims.values import of_one_machine
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
    plan = read_plan(folder)
    if plan.suite not in names("suite"):
        allowed = ", ".join(names("suite"))
        raise ConfigError(f"{folder}: holds results of suite {plan.suite!r}; allowed: {allowed}")
    return plan, planned(folder, read_records(folder))


def run_command(words: Sequence[str]) -> int:
    """Run the requested suites, then judge and report them; return the exit status.

    Raises ConfigError, ExecutorError, StoreError.
    """
    given = by_key(words)
    if "preset" in given:
        return run_preset(words)
    if given.get("suite") == "all" and "budget_min" in given:
        return run_preset(["preset=host", *(word for word in words if word != "suite=all")])
    if "from_results" in given:
        if others := [key for key in given if key not in ("from_results", "out", "show", "suite")]:
            raise ConfigError(
                f"{others[0]}: nothing is run with from_results; allowed with it: out, show, suite"
            )
        check_show(given.get("show", "answer"))
        from_results(given)
        return DONE
    if "budget_min" in given:
        raise ConfigError("budget_min: goes with suite=all, preset=host or preset=gpu")
    runs = load(words)
    if runs[0].plan_only or len(runs) > 1:
        plans = [planned_sweep(run) for run in runs]
        total = [total_line([estimate for _, estimate in plans])] if len(runs) > 1 else []
        if runs[0].plan_only:
            print_all([*("\n".join([*lines, ""]) for lines, _ in plans), *total] if total else plans[0][0])
            return DONE
        announce(total)
    for run in runs:
        with turn(run.out):
            for stage in stages(run):
                sweep(stage)
                if len(runs) == 1:
                    refuse_nothing_ran(stage.out)
                report(stage.out, stage.out, everything=stage.show_all)
    if given.get("suite") == "all":
        print_index([run.out for run in runs], Path(given.get("out", "results")))
    return ended([run.out for run in runs])


def run_preset(words: Sequence[str]) -> int:
    """Run what a preset chooses here within its budget, then judge and report it; return the exit status.

    Raises ConfigError.
    """
    from harness.preset.programme import planned_programme, requested
    from harness.preset.run import programme_lines, run_programme

    request = requested(words)
    programme = planned_programme(request)
    if request.plan:
        print_all([*programme_lines(programme), "nothing was run: plan=true"])
        return DONE
    announce(programme_lines(programme))
    with turn(request.folder):
        folders = run_programme(programme)
        for folder in folders:
            report(folder, folder)
        print_index(folders, request.folder)
    return ended(folders)


def print_index(folders: Sequence[Path], out: Path) -> None:
    """Write the index of these folders and one table of all their samples into `out`; print where."""
    from harness.report.results import write_measurements

    print_all(index(folders, out, without_answers=True))
    runs = [load_run(folder) for folder in folders]
    print_all([write_measurements(out, {plan.suite: records for plan, records in runs})])


def ended(folders: Sequence[Path]) -> int:
    """Return the exit status of sweeps: what ran out of memory, out of time or is unavailable is a result."""
    broken = {Status.CRASHED, Status.WRONG_RESULT}
    statuses = {record.status for folder in folders for record in load_run(folder)[1]}
    return BROKEN_CELL if broken & statuses else DONE


def refuse_nothing_ran(folder: Path) -> None:
    """Raise ConfigError where every cell of a run is unavailable for one and the same reason."""
    _, records = load_run(folder)
    reasons = {record.reason if record.status == Status.UNAVAILABLE else "" for record in records}
    if len(reasons) == 1 and (reason := reasons.pop()):
        cells = "the only cell is" if len(records) == 1 else f"all {len(records)} cells are"
        raise ConfigError(f"nothing was run: {cells} unavailable: {reason}")
