"""The pipeline of a command, in order: config, sweep, judge, report.

What not every command needs is imported where it is used, so that `--help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.run.command_line import START, USAGE, Command, read, version_line
from harness.config.validation import ConfigError
from harness.sweep.executors import ExecutorError
from harness.sweep.executors.start import executor_context
from harness.sweep.store import OtherSchemaError, StoreError

if TYPE_CHECKING:
    from harness.records import Record
    from harness.report.report_data import ReportData
    from harness.sweep.plan import Plan

COMMANDS = {
    "fit": "harness.commands.fit.command",
    "cost": "harness.commands.cost.command",
    "profile": "harness.commands.profile",
    "compare": "harness.commands.compare.command",
    "migrate": "harness.sweep.migrate",
}
"""The module of each command that is not a sweep; `python -m harness.fit` starts the same one."""


def main(argv: Sequence[str]) -> int:
    """Run a command and return its exit status: 0 done, 1 the store failed, 2 a mistake, 128 + N a signal."""
    logging.basicConfig(format="harness: %(message)s", level=logging.WARNING)
    logging.getLogger("harness.sweep.progress").setLevel(logging.INFO)
    if not argv:
        print(START)
        return 2
    if argv[0] in COMMANDS:
        status: int = import_module(COMMANDS[argv[0]]).main(argv[1:])
        return status
    try:
        command = read(argv)
        if command.shown:
            print_all(shown(command))
            return 0
        with executor_context():
            run_command(command.words)
    except (ConfigError, ExecutorError, StoreError) as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1 if isinstance(error, StoreError) and not isinstance(error, OtherSchemaError) else 2
    return 0


def print_all(lines: Iterable[str]) -> None:
    """Print the lines; whoever reads them may stop, as `head` does."""
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the process's end


def command_line() -> None:
    """Run the command `throughput-harness`."""
    sys.exit(main(sys.argv[1:]))


def shown(command: Command) -> Iterator[str]:
    """Yield the lines that a command prints which runs nothing; raises ConfigError."""
    match command.shown:
        case "--help":
            yield USAGE
        case "--version":
            yield version_line()
        case "--cfg":
            from harness.commands.run.config_view import config_yaml

            yield config_yaml(command.words, command.package, command.resolve).rstrip()
        case "--info":
            from harness.commands.run.config_view import info_lines

            yield from info_lines(command.words, command.value)
        case "--shell-completion":
            from harness.commands.run.completion import answer

            yield from answer(command.value)
        case "list":
            from harness.commands.listing import list_lines

            yield from list_lines(command.words)


def run_command(words: Sequence[str]) -> None:
    """Run the requested suites, then judge and report them; raises ConfigError, ExecutorError, StoreError."""
    from harness.config.run import check_show, load

    given = dict(word.split("=", 1) for word in words if "=" in word)
    if "preset" in given:
        run_preset(words)
        return
    if "from_results" in given:
        for key in given:
            if key not in ("from_results", "out", "show", "suite"):
                raise ConfigError(
                    f"{key}: nothing is run with from_results; allowed with it: out, show, suite"
                )
        check_show(given.get("show", "answer"))
        judge_again(given)
        return
    from harness.sweep.progress import announce
    from harness.sweep.sweep import planned_sweep, stages, sweep, total_line

    runs = load(words)
    if runs[0].plan_only or len(runs) > 1:
        plans = [planned_sweep(run) for run in runs]
        total = [total_line([estimate for _, estimate in plans])] if len(runs) > 1 else []
        if runs[0].plan_only:
            print("\n".join([*("\n".join([*lines, ""]) for lines, _ in plans), *total]).rstrip())
            return
        announce(total)
    for run in runs:
        for stage in stages(run):
            sweep(stage)
            if len(runs) == 1:
                refuse_nothing_ran(stage.out)
            report(stage.out, stage.out, everything=stage.show_all)
    if given.get("suite") == "all":
        out = Path(given.get("out", "results"))
        print("\n".join(index([run.out for run in runs], out, without_answers=True)))


def run_preset(words: Sequence[str]) -> None:
    """Run what a preset chooses here within its budget, then judge and report it; raises ConfigError."""
    from harness.preset.programme import planned_programme
    from harness.preset.programme_view import programme_lines
    from harness.preset.request import requested
    from harness.preset.run import run_programme
    from harness.sweep.progress import announce

    request = requested(words)
    programme = planned_programme(request)
    if request.plan_only:
        print("\n".join([*programme_lines(programme), "nothing was run: plan=true"]))
        return
    announce(programme_lines(programme))
    folders = run_programme(programme)
    for folder in folders:
        report(folder, folder)
    print("\n".join(index(folders, request.out, without_answers=True)))


def judge_again(given: Mapping[str, str]) -> None:
    """Report the results in `from_results`, or write an index of several folders; raises ConfigError."""
    listed = listed_folders(given["from_results"])
    source = listed[0]
    if len(listed) > 1 and "out" not in given:
        raise ConfigError("out: missing; from_results=[A,B] writes an index of these folders into out=FOLDER")
    out = Path(given.get("out", source))
    folders = [one for folder in listed for one in results_folders(folder) or [folder]]
    if len(listed) > 1 or folders != [source]:
        print("\n".join(index(folders, out)))
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


def refuse_nothing_ran(folder: Path) -> None:
    """Raise ConfigError where every cell of a run is unavailable for one and the same reason."""
    from harness.records import Status

    _, records = load_run(folder)
    reasons = {record.reason if record.status == Status.UNAVAILABLE else "" for record in records}
    if len(reasons) == 1 and (reason := reasons.pop()):
        cells = "the only cell is" if len(records) == 1 else f"all {len(records)} cells are"
        raise ConfigError(f"nothing was run: {cells} unavailable: {reason}")


def results_folders(source: Path) -> list[Path]:
    """Return the results folders in a folder that is none itself."""
    if (source / "plan.json").exists() or not source.is_dir():
        return []
    return sorted(path.parent for path in source.glob("*/plan.json"))


def index(folders: Sequence[Path], out: Path, without_answers: bool = False) -> list[str]:
    """Write the index of results folders into `out`, and the answers on the paper's claims; return where.

    Raises ConfigError, before anything is written, where results do not go together: two folders of one
    claim, two machines. `without_answers`: then the index alone is written.
    """
    from harness.report import write_answers, write_index
    from harness.report.index.answer_sources import judged_claims

    results = [(judged(folder), Path(os.path.relpath(folder, out)).as_posix()) for folder in folders]
    try:
        claims = judged_claims(results)
    except ConfigError as conflict:
        if not without_answers:
            raise
        return [f"Index: {write_index(out, results)}", f"No answers on the paper's claims: {conflict}"]
    answers = write_answers(out, claims)
    return [f"Index: {write_index(out, results)}", f"Answers on the paper's claims: {answers}"]


def load_run(folder: Path) -> tuple[Plan, list[Record]]:
    """Return the last plan of a results folder, and its records in that order."""
    from harness.config.run import names
    from harness.sweep.plan import read_plan
    from harness.sweep.store import read_records

    plan = read_plan(folder)
    if plan.suite not in names("suite"):
        allowed = ", ".join(names("suite"))
        raise ConfigError(f"{folder}: holds results of suite {plan.suite!r}; allowed: {allowed}")
    records = {record.cell.id: record for record in read_records(folder)}
    return plan, [records[cell] for cell in plan.cells if cell in records]
