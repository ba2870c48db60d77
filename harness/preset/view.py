"""A programme as text: the order with minutes and claims, and what is left out, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from harness.claims.load import load_claims
from harness.preset.programme import Programme, Task, claims_about, done_by, settled
from harness.sweep.estimate import as_time
from harness.units import counted

WIDTH = 110

SHORT_S = 10.0
"""Seconds below which a task takes no longer than the start of its sweep, which is in them."""


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
    lists, targets = sweeps(programme.fit), programme.targets
    ran: list[Task] = []
    for number, tasks in enumerate(lists, 1):
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
    by_hardware: dict[str, dict[str, set[str]]] = {}
    others: dict[tuple[str, str], str] = {}
    for one in programme.hindrances:
        if one.hardware:
            workloads = by_hardware.setdefault(one.reason, {})
            workloads.setdefault(f"{one.suite} {one.workload}", set()).add(one.claim)
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
