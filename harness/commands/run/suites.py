"""`python -m harness suite=NAME`: config, sweep, judge, report, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.commands.entry import BROKEN_CELL, DONE, print_all
from harness.commands.run.from_results import from_results, index, load_run, report
from harness.config.validation import ConfigError
from harness.config.words import by_key


def run_command(words: Sequence[str]) -> int:
    """Run the requested suites, then judge and report them; return the exit status.

    Raises ConfigError, ExecutorError, StoreError.
    """
    from harness.config.run import check_show, load

    given = by_key(words)
    if "preset" in given:
        return run_preset(words)
    if given.get("suite") == "all" and "budget_min" in given:
        return run_preset(["preset=host", *(word for word in words if word != "suite=all")])
    if "from_results" in given:
        for key in given:
            if key not in ("from_results", "out", "show", "suite"):
                raise ConfigError(
                    f"{key}: nothing is run with from_results; allowed with it: out, show, suite"
                )
        check_show(given.get("show", "answer"))
        from_results(given)
        return DONE
    if "budget_min" in given:
        raise ConfigError("budget_min: goes with suite=all, preset=host or preset=gpu")
    from harness.sweep.progress import announce
    from harness.sweep.sweep import planned_sweep, stages, sweep, total_line
    from harness.sweep.turn import turn

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
        out = Path(given.get("out", "results"))
        print_all(index([run.out for run in runs], out, without_answers=True))
        print_all([every_sample([run.out for run in runs], out)])
    return ended([run.out for run in runs])


def run_preset(words: Sequence[str]) -> int:
    """Run what a preset chooses here within its budget, then judge and report it; return the exit status.

    Raises ConfigError.
    """
    from harness.preset.programme import planned_programme
    from harness.preset.request import requested
    from harness.preset.run import run_programme
    from harness.preset.view import programme_lines
    from harness.sweep.progress import announce
    from harness.sweep.turn import turn

    request = requested(words)
    programme = planned_programme(request)
    if request.plan_only:
        print_all([*programme_lines(programme), "nothing was run: plan=true"])
        return DONE
    announce(programme_lines(programme))
    with turn(request.out):
        folders = run_programme(programme)
        for folder in folders:
            report(folder, folder)
        print_all(index(folders, request.out, without_answers=True))
        print_all([every_sample(folders, request.out)])
    return ended(folders)


def every_sample(folders: Sequence[Path], out: Path) -> str:
    """Write all samples of these folders into one table in `out`; return where it is."""
    from harness.report.data.export_parquet import write_measurements

    runs = [load_run(folder) for folder in folders]
    return write_measurements(out, {plan.suite: records for plan, records in runs})


def ended(folders: Sequence[Path]) -> int:
    """Return the exit status of sweeps: what ran out of memory, out of time or is unavailable is a result."""
    from harness.records import Status

    broken = {Status.CRASHED, Status.WRONG_RESULT}
    statuses = {record.status for folder in folders for record in load_run(folder)[1]}
    return BROKEN_CELL if broken & statuses else DONE


def refuse_nothing_ran(folder: Path) -> None:
    """Raise ConfigError where every cell of a run is unavailable for one and the same reason."""
    from harness.records import Status

    _, records = load_run(folder)
    reasons = {record.reason if record.status == Status.UNAVAILABLE else "" for record in records}
    if len(reasons) == 1 and (reason := reasons.pop()):
        cells = "the only cell is" if len(records) == 1 else f"all {len(records)} cells are"
        raise ConfigError(f"nothing was run: {cells} unavailable: {reason}")
