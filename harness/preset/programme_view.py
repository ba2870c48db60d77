"""A programme as text: the order with minutes and claims, and what is left out, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from harness.claims.answers import FEWEST
from harness.claims.load import load_claims
from harness.claims.paper import load_answers
from harness.preset.claim_coverage import Hindrance, Lack, claims_about
from harness.preset.programme import Programme
from harness.preset.request import ANY
from harness.preset.work_order import Task, TimeBudget, WorkStep, as_one, done_by, settled, together, valued
from harness.sweep.estimate.estimate import as_time
from harness.units import counted

WIDTH = 110


def programme_lines(programme: Programme) -> Iterator[str]:
    """Yield what is run, in order, with the minutes and the claims that each work settles; then the rest."""
    steps, host = programme.steps, programme.host
    about = _claims_about(programme)
    machine = f"{host.gpus} × {host.name}" if host.gpus else f"no GPU, {host.name}"
    yield (
        f"preset={programme.preset.name}: {machine} ({host.memory_B / 2**30:.0f} GiB), "
        f"budget {programme.request.budget_min:.3g} min, into {programme.request.out}"
    )
    yield ""
    yield from _table(_joined(steps) if programme.preset.device == ANY else steps)
    yield ""
    ends = settled(programme.targets, done_by(programme.fit))
    have = valued(programme.targets, done_by(programme.fit))
    assumed = " (* assumed: no run on such a GPU is known)" if any(s.work.assumed for s in steps) else ""
    yield f"together about {as_time(programme.seconds)} with reports{assumed}"
    if programme.preset.device == ANY:
        claims = counted(len(ends), "claim")
        yield (
            f"gives a value to {len(have)} of the {claims} that can have one here, and to "
            f"{sum(ends.values())} all that settle them"
        )
    else:
        yield (
            f"settles {sum(ends.values())} of the {counted(len(ends), 'claim')} that can be settled here; "
            f"{sum(map(len, about.values()))} are about such a device"
        )
    yield from _few_values(programme)
    missing = [one for one, is_settled in ends.items() if not is_settled]
    yield from _late(
        programme, [one for one in missing if one in have], [one for one in missing if one not in have]
    )
    yield from _lacking(programme)
    yield from _unavailable(programme, about)


def left_out_line(work: Task, budget: TimeBudget, elapsed_s: float) -> str:
    """Return why a work falls out that the plan had."""
    late = budget.pace(work.suite)
    slower = f", since its suite takes {late:.1f} times as long as estimated" if late > 1 else ""
    left = as_time(max(budget.left_s(work, elapsed_s), 0.0))
    return f"left out: {_name(work)} would take {as_time(budget.expected_s(work))}{slower}; {left} are left"


def time_is_up(work: Task) -> str:
    """Return that a work was ended by the budget."""
    return f"time is up: {_name(work)} was ended; its cells that had ended are kept"


def _claims_about(programme: Programme) -> Mapping[str, list[str]]:
    """Return the claims about the preset's device, by suite."""
    preset = programme.preset
    return {
        suite: [one.id for one in claims_about(load_claims(suite), preset.device)]
        for suite in (*preset.suites, *preset.unavailable_suites)
    }


def _table(steps: Sequence[WorkStep]) -> Iterator[str]:
    rows = [
        (str(number), work.suite, work.workload, str(work.gpus), _minutes(work))
        for number, work in enumerate((step.work for step in steps), 1)
    ]
    head = ("", "suite", "workload", "GPUs", "min")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    yield _row(head, widths) + "  settles"
    for row, step in zip(rows, steps, strict=True):
        parts = [", ".join(step.settles)] if step.settles else []
        parts += [f"adds to {', '.join(step.adds_to)}"] if step.adds_to else []
        start = _row(row, widths)
        lines = wrap("; ".join(parts), WIDTH - len(start) - 2)
        yield f"{start}  {lines[0]}"
        yield from (f"{'':{len(start)}}  {line}" for line in lines[1:])


def _joined(steps: Sequence[WorkStep]) -> list[WorkStep]:
    """Return one step for those that one sweep runs, named by its first workload."""
    by_work = {step.work: step for step in steps}
    joined = []
    for works in together([step.work for step in steps]):
        own = [by_work[work] for work in works]
        more = f" and {len(works) - 1} more" if len(works) > 1 else ""
        work = as_one(works)._replace(workload=f"{works[0].workload}{more}")
        settles = tuple(dict.fromkeys(claim for one in own for claim in one.settles))
        adds_to = dict.fromkeys(claim for one in own for claim in one.adds_to if claim not in settles)
        joined.append(WorkStep(work, settles, tuple(adds_to)))
    return joined


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = (False, True, True, False, False)
    return "  ".join(
        one.ljust(width) if is_left else one.rjust(width)
        for one, width, is_left in zip(cells, widths, left, strict=True)
    )


def _minutes(work: Task) -> str:
    return f"{work.seconds / 60:.1f}{'*' if work.assumed else ''}"


def _few_values(programme: Programme) -> Iterator[str]:
    """Yield the claims that get verdicts here, but too few values for an answer on the paper's claims."""
    asked = {name for claim in load_answers().claims for name in claim.judged}
    most: dict[str, int] = {}
    for target in programme.targets:
        name = f"{target.suite}/{target.claim}"
        most[name] = max(most.get(name, 0), target.values)
    few = [name for name, values in most.items() if values < FEWEST and name in asked]
    if few:
        yield from _wrapped(
            f"a verdict, but fewer than the {FEWEST} values that an answer needs: {', '.join(few)}"
        )


def _late(
    programme: Programme, some: Sequence[tuple[str, str]], none: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield the works for which there is no time, with their minutes, and the claims that miss them.

    These are claims with some values and claims with none, by suite and name.
    """
    for suite in dict.fromkeys(work.suite for work in programme.late):
        works = [work for work in programme.late if work.suite == suite]
        yield from _wrapped(
            f"left out, no time, with minutes: {suite} "
            + ", ".join(f"{one.workload} {_minutes(one)}" for one in works)
        )
    for text, claims in (("not settled", some), ("no value", none)):
        if claims:
            yield from _wrapped(f"{text}, no time: {', '.join(map('/'.join, claims))}")


def _lacking(programme: Programme) -> Iterator[str]:
    """Yield what other hardware would settle, claims about other devices, and those that no suite settles."""
    by_reason: dict[str, dict[str, set[str]]] = {}
    others: dict[Lack, dict[str, list[str]]] = {Lack.DEVICE: {}, Lack.SUITE: {}}
    for suite, covered in programme.coverages.items():
        for one in covered.hindrances:
            if one.lack == Lack.HARDWARE:
                workloads = by_reason.setdefault(one.reason, {})
                workloads.setdefault(f"{suite} {one.workload}", set()).add(one.claim)
        have = {target.claim for target in covered.targets}
        for claim, best in _nearest(covered.hindrances).items():
            if claim not in have and best.lack != Lack.HARDWARE:
                others[best.lack].setdefault(best.reason, []).append(f"{suite}/{claim}")
    for reason, workloads in sorted(by_reason.items()):
        named = "; ".join(f"{name} ({', '.join(sorted(claims))})" for name, claims in workloads.items())
        yield from _wrapped(f"left out, {reason}: {named}")
    for reasons in others.values():
        for reason, claims in reasons.items():
            yield from _wrapped(f"not settled here, {reason}: {', '.join(claims)}")


def _nearest(hindrances: Sequence[Hindrance]) -> dict[str, Hindrance]:
    """Return of each claim's hindrances the one that comes nearest to a value."""
    nearest: dict[str, Hindrance] = {}
    for one in hindrances:
        if one.claim not in nearest or one.lack < nearest[one.claim].lack:
            nearest[one.claim] = one
    return nearest


def _unavailable(programme: Programme, about: Mapping[str, list[str]]) -> Iterator[str]:
    for suite, reason in programme.preset.unavailable_suites.items():
        yield from _wrapped(f"no run on a GPU, {suite} ({counted(len(about[suite]), 'claim')}): {reason}")


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _name(work: Task) -> str:
    return f"{work.suite} {work.workload}"
