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
from textwrap import wrap
from types import FrameType

from harness.claims.load import load_claims
from harness.config.run import Run
from harness.config.validation import ConfigError
from harness.preset.programme import Programme, Task, claims_about, done_by, settled
from harness.sweep.plan import as_time, read_plan, write_plan
from harness.sweep.progress import announce
from harness.sweep.runner import TIME_IS_UP, Interrupted
from harness.sweep.sweep import recorded, sweep
from harness.units import counted

WIDTH = 110

SHORT_S = 10.0  # seconds below which a task takes no longer than the start of its sweep, which is in them


def sweeps(tasks: Sequence[Task]) -> list[list[Task]]:
    """Return the lists of tasks that one sweep runs each: a suite's short ones where its first one is."""
    lists: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        name = "" if task.seconds < SHORT_S else task.workload
        lists.setdefault((task.suite, name), []).append(task)
    return list(lists.values())


def programme_lines(programme: Programme) -> Iterator[str]:
    """Yield what is run, in order, with the minutes and the claims that each sweep settles; then the rest."""
    host, request = programme.host, programme.request
    machine = f"{host.gpus} × {host.name}" if host.gpus else f"no GPU, {host.name}"
    yield (
        f"preset={request.preset}: {machine} ({host.memory_B / 2**30:.0f} GiB), "
        f"budget {request.budget_min:.3g} min, into {request.folder}"
    )
    yield ""
    yield from _table(programme)
    yield ""
    assumed = any(task.assumed for task in programme.fit)
    note = " (* assumed: no run on such a host is known)" if assumed else ""
    yield f"together about {as_time(programme.seconds)} with reports{note}"
    done = done_by(programme.fit)
    ends = settled(programme.targets, done)
    have = {(one.suite, one.claim) for one in programme.targets if one.values(done)}
    yield (
        f"gives a value to {len(have)} of the {counted(len(ends), 'claim')} that can have one here, and to "
        f"{sum(ends.values())} all that an answer needs"
    )
    for suite in dict.fromkeys(task.suite for task in programme.late):
        late = [f"{one.workload} {minutes([one])}" for one in programme.late if one.suite == suite]
        yield from _wrapped(f"left out, no time, with minutes: {suite} {', '.join(late)}")
    for text, claims in (
        ("not settled", [one for one in ends if one in have and not ends[one]]),
        ("no value", [one for one in ends if one not in have]),
    ):
        if claims:
            yield from _wrapped(f"{text}, no time: {', '.join(map('/'.join, claims))}")
    yield from _lacking(programme)
    for suite, reason in programme.preset.unavailable_suites.items():
        number = len(claims_about(load_claims(suite), programme.preset.device))
        yield from _wrapped(f"no run on a GPU, {suite} ({counted(number, 'claim')}): {reason}")


def minutes(tasks: Sequence[Task]) -> str:
    """Return the minutes of tasks that run together, with `*` where they are assumed."""
    return f"{sum(one.seconds for one in tasks) / 60:.1f}{'*' if any(one.assumed for one in tasks) else ''}"


def _table(programme: Programme) -> Iterator[str]:
    """Yield a line per sweep: the claims that it settles, and those to which it adds values."""
    rows = [("", "suite", "workload", "GPUs", "min", "settles")]
    targets, ran = programme.targets, list[Task]()
    for number, tasks in enumerate(sweeps(programme.fit), 1):
        before, first, names = settled(targets, done_by(ran)), tasks[0], {one.workload for one in tasks}
        ran += tasks
        after = settled(targets, done_by(ran))
        own = sorted(
            {one.claim for one in targets if one.suite == first.suite and names & one.workloads.keys()}
        )
        settles = [one for one in own if after[first.suite, one] and not before[first.suite, one]]
        adds_to = [one for one in own if one not in settles]
        parts = [", ".join(settles)] if settles else []
        parts += [f"adds to {', '.join(adds_to)}"] if adds_to else []
        more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        gpus = str(max(one.gpus for one in tasks))
        rows.append(
            (str(number), first.suite, f"{first.workload}{more}", gpus, minutes(tasks), "; ".join(parts))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        places = [one.ljust if column in (1, 2) else one.rjust for column, one in enumerate(row[:5])]
        start = "  ".join(place(width) for place, width in zip(places, widths, strict=True))
        lines = wrap(row[5], WIDTH - len(start) - 2) or [""]
        yield f"{start}  {lines[0]}"
        yield from (f"{'':{len(start)}}  {line}" for line in lines[1:])


def _lacking(programme: Programme) -> Iterator[str]:
    """Yield what other hardware would settle, and the claims that have no value here for another reason."""
    have = {(one.suite, one.claim) for one in programme.targets}
    by_hardware: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    others: dict[tuple[str, str], str] = {}
    for one in programme.hindrances:
        if one.hardware:
            by_hardware[one.reason][f"{one.suite} {one.workload}"].add(one.claim)
            have.add((one.suite, one.claim))
        else:
            others.setdefault((one.suite, one.claim), one.reason)
    for reason, workloads in sorted(by_hardware.items()):
        named = "; ".join(f"{name} ({', '.join(sorted(claims))})" for name, claims in workloads.items())
        yield from _wrapped(f"left out, {reason}: {named}")
    for reason in dict.fromkeys(others.values()):
        claims = ["/".join(name) for name, why in others.items() if why == reason and name not in have]
        if claims:
            yield from _wrapped(f"not settled here, {reason}: {', '.join(claims)}")


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


PROGRAMME = "programme.json"  # what was planned, run and left out, next to the suites' folders


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
            entries.append(entry := _entry(tasks, expected_s))
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
    write_plan(run.out, plan._replace(left_out=(*plan.left_out, sentence)))


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
    return {
        "suite": tasks[0].suite,
        "workload": ", ".join(one.workload for one in tasks),
        "seconds": round(expected_s, 1),
        "assumed": any(one.assumed for one in tasks),
        "gpus": max(one.gpus for one in tasks),
    }


def _left_out(tasks: Sequence[Task], expected_s: float, slower: float, left_s: float) -> str:
    since = f", since its suite takes {slower:.1f} times as long as estimated" if slower > 1 else ""
    left = as_time(max(left_s, 0.0))
    return f"left out: {_name(tasks)} would take {as_time(expected_s)}{since}; {left} are left"


def _name(tasks: Sequence[Task]) -> str:
    return f"{tasks[0].suite} {', '.join(one.workload for one in tasks)}"
