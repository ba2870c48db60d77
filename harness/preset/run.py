"""Run a preset's programme: one sweep per work, in order, until time is up; then what was left out.

Each suite has a folder below the preset's, as `suite=all` writes them.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from harness.config.run import Run
from harness.config.validation import ConfigError
from harness.preset.claim_coverage import Lack
from harness.preset.programme import Programme
from harness.preset.programme_view import left_out_line, time_is_up
from harness.preset.work_order import TimeBudget, as_one, together
from harness.sweep.plan import read_plan, write_cells
from harness.sweep.progress import announce
from harness.sweep.runner import TIME_IS_UP, Interrupted
from harness.sweep.sweep import recorded, sweep

PROGRAMME = "programme.json"
"""What was planned, run and left out, next to the suites' folders."""


def run_programme(
    programme: Programme,
    sweep_run: Callable[[Run], None] = sweep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Path]:
    """Run the works in order while there is time, and return the suites' folders.

    A suite that takes longer than estimated leaves less time for later works: those that no longer fit are
    left out, with a line. A work that is running when time is up is ended; what had ended has its record.
    Raises ConfigError where no cell ended at all.
    """
    budget = TimeBudget(60 * programme.request.budget_min, programme.first_s, programme.preset.report_s)
    began_s = clock()
    ran: dict[str, list[str]] = {}
    entries: list[dict[str, object]] = []
    try:
        for works in together(programme.order):
            work, elapsed_s = as_one(works), clock() - began_s
            estimated_s = round(budget.expected_s(work), 1)
            entry = {**work._asdict(), "seconds": estimated_s}
            if not budget.fits(work, elapsed_s):
                if any(one in programme.fit for one in works):
                    announce([left_out_line(work, budget, elapsed_s)])
                entries.append({**entry, "ended": "left out: no time"})
                continue
            names = [*ran.get(work.suite, []), *(one.workload for one in works)]
            run = part_of(programme.runs[work.suite], names)
            in_time = ended_within(budget.left_s(work, elapsed_s), sweep_run, run)
            ran[work.suite] = names
            took_s = clock() - began_s - elapsed_s
            budget.note(work, took_s)
            entries.append(
                {**entry, "took_s": round(took_s, 1), "ended": "done" if in_time else "ended: time is up"}
            )
            if not in_time:
                announce([time_is_up(work)])
    finally:  # what ran is stated after an interruption, too
        write_programme(programme, entries, clock() - began_s)
    with_records = {suite: names for suite, names in ran.items() if recorded(programme.runs[suite])}
    if not with_records:
        raise ConfigError(
            f"budget_min={programme.request.budget_min:g}: time was up before any cell had ended"
        )
    for suite, names in with_records.items():
        state_left_out(programme.runs[suite], names, programme.preset.name)
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
    """Write programme.json: the host's GPUs, the budget, and each work with its estimate and how it ended."""
    request, host = programme.request, programme.host
    lacking = [
        {"suite": suite, **one._asdict(), "lack": one.lack.name.lower()}
        for suite, covered in programme.coverages.items()
        for one in covered.hindrances
        if one.lack == Lack.HARDWARE
    ]
    content = {
        "preset": request.preset,
        "budget_min": request.budget_min,
        "took_s": round(took_s, 1),
        "gpus": host._asdict(),
        "works": entries,
        "left_out": lacking,
        "unavailable_suites": programme.preset.unavailable_suites,
    }
    request.out.mkdir(parents=True, exist_ok=True)
    (request.out / PROGRAMME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
