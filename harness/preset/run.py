"""Run a preset's programme: one sweep after the other, in order, until time is up; then what was left out.

Each suite has a folder below the preset's, as `suite=all` writes them.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from harness.config.run import Run
from harness.config.validation import ConfigError
from harness.preset.programme import Programme, Task
from harness.preset.view import sweeps
from harness.sweep.estimate import as_time
from harness.sweep.plan import read_plan, write_cells
from harness.sweep.progress import announce
from harness.sweep.runner import TIME_IS_UP, Interrupted
from harness.sweep.sweep import recorded, sweep

PROGRAMME = "programme.json"
"""What was planned, run and left out, next to the suites' folders."""


@dataclass(slots=True)
class _Pace:
    """Expected and real seconds of one suite so far, its reports apart."""

    expected_s: float = 0.0
    took_s: float = 0.0
    ran: list[str] = field(default_factory=list)  # workloads

    @property
    def slower(self) -> float:
        """Return how many times as long as estimated the suite takes, at least 1."""
        return max(1.0, self.took_s / self.expected_s) if self.expected_s else 1.0


def run_programme(
    programme: Programme,
    sweep_run: Callable[[Run], None] = sweep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Path]:
    """Run the tasks in order while there is time, and return the suites' folders.

    A suite that takes longer than estimated leaves less time for later tasks: those that no longer fit are
    left out, with a line. A sweep that is running when time is up is ended; what had ended has its record.
    Raises ConfigError where no cell ended at all.
    """
    paces: dict[str, _Pace] = defaultdict(_Pace)
    began_s = clock()
    entries: list[dict[str, object]] = []
    report_s = programme.preset.report_s
    try:
        for tasks in [*sweeps(programme.fit), *sweeps(programme.late)]:
            suite, names, elapsed_s = tasks[0].suite, [one.workload for one in tasks], clock() - began_s
            pace, run = paces[suite], programme.runs[suite]
            first_s = 0.0 if pace.ran else programme.fixed_s[suite] - report_s
            estimated_s = sum(one.seconds for one in tasks) + first_s
            expected_s = estimated_s * pace.slower
            reports = len({name for name, one in paces.items() if one.ran} | {suite})
            left_s = programme.budget_s - elapsed_s - report_s * reports
            entry = _entry(tasks, expected_s)
            entries.append(entry)
            if expected_s > left_s:
                entry["ended"] = "left out: no time"
                if tasks[0] in programme.fit:
                    announce([_left_out(tasks, expected_s, pace.slower, left_s)])
                continue
            pace.ran += names
            in_time = ended_within(left_s, sweep_run, part_of(run, pace.ran))
            took_s = clock() - began_s - elapsed_s
            pace.expected_s, pace.took_s = pace.expected_s + estimated_s, pace.took_s + took_s
            entry |= {"took_s": round(took_s, 1), "ended": "done" if in_time else "ended: time is up"}
            if not in_time:
                announce([f"time is up: {_name(tasks)} was ended; its cells that had ended are kept"])
    finally:  # what ran is stated after an interruption, too
        ended = [entry for entry in entries if "ended" in entry]
        write_programme(programme, ended, clock() - began_s)
    with_records = [suite for suite, pace in paces.items() if pace.ran and recorded(programme.runs[suite])]
    if not with_records:
        raise ConfigError(
            f"budget_min={programme.request.budget_min:g}: time was up before any cell had ended"
        )
    for suite in with_records:
        state_left_out(programme.runs[suite], paces[suite].ran, programme.request.preset)
    return [programme.runs[suite].out for suite in with_records]


def part_of(run: Run, names: Sequence[str]) -> Run:
    """Return the run with these workloads, and the reference workloads."""
    kept = {n: one for n, one in run.workloads.items() if n in names or n in run.reference_workloads}
    return replace(run, workloads=kept)


def ended_within(seconds: float, sweep_run: Callable[[Run], None], run: Run) -> bool:
    """Sweep, and return whether it ended by itself; after `seconds` it is ended as by SIGTERM."""
    try:
        with alarm(seconds):
            sweep_run(run)
    except Interrupted as ended:
        if ended.code != 128 + TIME_IS_UP:
            raise
        return False
    return True


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Interrupted` inside the block once `seconds` have passed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Interrupted(128 + number)

    main_thread = threading.get_ident()
    timer = threading.Timer(max(seconds, 0.0), lambda: signal.pthread_kill(main_thread, TIME_IS_UP))
    timer.daemon = True
    previous = signal.signal(TIME_IS_UP, end)
    timer.start()
    try:
        yield
    finally:
        try:
            timer.cancel()
            timer.join()
        finally:  # its signal may arrive while this waits
            signal.signal(TIME_IS_UP, previous)


def state_left_out(run: Run, ran: Sequence[str], preset: str) -> None:
    """State in the folder's plan which workloads there was no time for, so that the report does too."""
    missing = [name for name in run.variants_by_workload if name not in ran]
    if not missing:
        return
    sentence = (
        f"preset={preset} had time for {len(ran)} of {len(run.variants_by_workload)} workloads that settle "
        f"claims here; left out: {', '.join(missing)}"
    )
    plan = read_plan(run.out)
    write_cells(run.out, plan._replace(left_out=(*plan.left_out, sentence)))


def write_programme(programme: Programme, entries: Sequence[Mapping[str, object]], took_s: float) -> None:
    """Write programme.json: host and budget, and each sweep with its estimate and how it ended."""
    content = {
        "preset": programme.request.preset,
        "budget_min": programme.request.budget_min,
        "took_s": round(took_s, 1),
        "gpus": programme.host._asdict(),
        "works": entries,
        "left_out": [one._asdict() for one in programme.hindrances if one.hardware],
        "unavailable_suites": programme.preset.unavailable_suites,
    }
    out = programme.request.folder
    out.mkdir(parents=True, exist_ok=True)
    (out / PROGRAMME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _entry(tasks: Sequence[Task], expected_s: float) -> dict[str, object]:
    """Return what programme.json says of one sweep before it runs."""
    return {
        "suite": tasks[0].suite,
        "workload": ", ".join(one.workload for one in tasks),
        "seconds": round(expected_s, 1),
        "assumed": any(one.assumed for one in tasks),
        "gpus": max(one.gpus for one in tasks),
    }


def _left_out(tasks: Sequence[Task], expected_s: float, slower: float, left_s: float) -> str:
    """Return why tasks fall out that the plan had."""
    since = f", since its suite takes {slower:.1f} times as long as estimated" if slower > 1 else ""
    left = as_time(max(left_s, 0.0))
    return f"left out: {_name(tasks)} would take {as_time(expected_s)}{since}; {left} are left"


def _name(tasks: Sequence[Task]) -> str:
    return f"{tasks[0].suite} {', '.join(one.workload for one in tasks)}"
