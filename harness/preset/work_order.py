"""What to run first in a limited time: workloads by the claims settled per minute, and the budget. Pure.

A claim is settled whole or not at all, so what it needs is taken together; where a first value counts
too, a single work may come before. Of two works that serve one claim, the one that also serves other claims
comes first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.preset.claim_coverage import ClaimTarget

SHORT_S = 5.0
"""Seconds below which a work takes no longer than the start of its sweep."""


class Task(NamedTuple):
    """One workload of a suite with the variants that claims compare on it, and how long that takes."""

    suite: str
    workload: str
    seconds: float
    assumed: bool  # the seconds are an assumption of the preset: no run on such a GPU is known
    gpus: int = 1


class WorkStep(NamedTuple):
    """A work in the order, with the claims that it settles there, and those to which it adds values."""

    work: Task
    settles: tuple[str, ...]
    adds_to: tuple[str, ...]


def ordered(
    works: Sequence[Task],
    targets: Sequence[ClaimTarget],
    fixed_s: Mapping[str, float],
    budget_s: float,
    first_value: int = 0,
) -> list[Task]:
    """Return the works in the order in which they are run.

    Again and again what settles a claim is taken whole: of all claims that still fit the budget, that whose
    missing works settle most claims per second. After them come the works that fit or add values, by gain per
    second. `fixed_s`: seconds that the first work of a suite costs in addition. `first_value`: what a claim's
    first value, in the first group that it lists, counts where settling it counts 1. With 0, as on a GPU, a
    claim is settled or gets nothing.
    """
    order: list[Task] = []
    spent_s = 0.0
    while chosen := _best(works, targets, order, fixed_s, budget_s - spent_s, first_value):
        spent_s += _cost_s(chosen, order, fixed_s)
        order += chosen
    while left := [work for work in works if work not in order]:
        order.append(max(left, key=lambda work: _worth(work, targets, order)))
    return order


def with_short_works_early(order: Sequence[Task]) -> list[Task]:
    """Return the order with the short works of each suite right after its first one: they cost little.

    What runs in a row in one suite is one sweep, which starts once; see `together`.
    """
    moved: list[Task] = []
    for work in order:
        if work in moved:
            continue
        first = all(one.suite != work.suite for one in moved)
        moved.append(work)
        if first:
            short = (one for one in order if one.suite == work.suite and one.seconds < SHORT_S)
            moved += [one for one in short if one != work]
    return moved


def together(order: Sequence[Task]) -> list[list[Task]]:
    """Return the works in the lists that are run by one sweep each: short ones of one suite in a row."""
    lists: list[list[Task]] = []
    for work in order:
        alike = lists and lists[-1][-1].suite == work.suite and lists[-1][-1].seconds < SHORT_S
        if alike and work.seconds < SHORT_S:
            lists[-1].append(work)
        else:
            lists.append([work])
    return lists


def as_one(works: Sequence[Task]) -> Task:
    """Return the works of one list as one."""
    first = works[0]
    if len(works) == 1:
        return first
    names = ", ".join(one.workload for one in works)
    seconds, assumed = sum(one.seconds for one in works), any(one.assumed for one in works)
    return Task(first.suite, names, seconds, assumed, max(one.gpus for one in works))


def _best(
    works: Sequence[Task],
    targets: Sequence[ClaimTarget],
    order: Sequence[Task],
    fixed_s: Mapping[str, float],
    left_s: float,
    first_value: int,
) -> list[Task]:
    """Return the works that are worth most per second, as `ordered` counts it; none where none fits the time.

    They settle a claim together; with `first_value` one work that gives a claim its first value may be best.
    """
    now = settled(targets, done_by(order))
    choices = []
    for suite, claim in (one for one, is_settled in now.items() if not is_settled):
        own = [one for one in targets if (one.suite, one.claim) == (suite, claim)]
        choices.append(_missing(works, own, targets, order))
    if first_value:
        choices += [[work] for work in works if work not in order]

    def claims_with(works: Sequence[Task]) -> int:
        done = done_by(works)
        return sum(settled(targets, done).values()) + first_value * len(
            valued(targets, done, in_first_group=True)
        )

    had = claims_with(order)
    best, best_rate = list[Task](), 0.0
    for chosen in choices:
        cost_s = _cost_s(chosen, order, fixed_s)
        rate = (claims_with([*order, *chosen]) - had) / max(cost_s, 1.0) if cost_s <= left_s else 0.0
        if rate > best_rate:
            best, best_rate = chosen, rate
    return best


def _missing(
    works: Sequence[Task], own: Sequence[ClaimTarget], targets: Sequence[ClaimTarget], order: Sequence[Task]
) -> list[Task]:
    """Return works that settle the claim of the targets `own`: sized ones first, then by gain per second."""
    chosen: list[Task] = []
    for target in own:
        for within_sized, needed in ((True, target.needed_sized), (False, target.needed)):
            names = target.sized if within_sized else target.workloads.keys()
            taken = done_by([*order, *chosen]).get(target.suite, set())
            left = [one for one in works if one.suite == target.suite and one.workload in names - taken]
            left.sort(key=lambda work: _worth(work, targets, order), reverse=True)
            chosen += left[: max(needed - len(names & taken), 0)]
    return sorted(chosen, key=lambda work: _worth(work, targets, order), reverse=True)


def _worth(work: Task, targets: Sequence[ClaimTarget], order: Sequence[Task]) -> tuple[float, float]:
    """Return the work's gain per second: for claims that are not settled, and for all."""
    settling, adding = gain(work, targets, done_by(order))
    return settling / max(work.seconds, 1.0), adding / max(work.seconds, 1.0)


def _cost_s(chosen: Sequence[Task], order: Sequence[Task], fixed_s: Mapping[str, float]) -> float:
    """Return the seconds of works that follow others, with what each suite costs once."""
    new = {work.suite for work in chosen} - {work.suite for work in order}
    return sum(work.seconds for work in chosen) + sum(fixed_s.get(suite, 0.0) for suite in new)


def done_by(works: Sequence[Task]) -> Mapping[str, set[str]]:
    """Return the workloads of the works by suite."""
    done: dict[str, set[str]] = defaultdict(set)
    for work in works:
        done[work.suite].add(work.workload)
    return done


def gain(
    work: Task, targets: Sequence[ClaimTarget], done: Mapping[str, Collection[str]]
) -> tuple[float, float]:
    """Return how many claims more the work settles, and what it has of all their values, in shares."""
    groups = Counter((target.suite, target.claim) for target in targets)
    settling = adding = 0.0
    for target in targets:
        if target.suite != work.suite or work.workload not in target.workloads:
            continue
        share = 1 / groups[target.suite, target.claim]
        before = done.get(work.suite, set())
        settling += share * (target.progress({*before, work.workload}) - target.progress(before))
        adding += share / len(target.workloads)
    return settling, adding


def settled(
    targets: Sequence[ClaimTarget], done: Mapping[str, Collection[str]]
) -> dict[tuple[str, str], bool]:
    """Return for each suite and claim whether every group of its values has what it needs."""
    claims: dict[tuple[str, str], bool] = {}
    for target in targets:
        enough = target.progress(done.get(target.suite, ())) == 1
        claims[target.suite, target.claim] = claims.get((target.suite, target.claim), True) and enough
    return claims


def valued(
    targets: Sequence[ClaimTarget], done: Mapping[str, Collection[str]], in_first_group: bool = False
) -> set[tuple[str, str]]:
    """Return the suites and claims that have a value.

    `in_first_group`: in the first group of values that the claim lists and can have here. conf/claims lists
    what comes nearest to the claim first: OVERLORD's memory is of 306 sources in Parquet, and with fewer
    sources or lines of JSON the gain is another.
    """
    first: dict[tuple[str, str], str] = {}
    for target in targets:
        first.setdefault((target.suite, target.claim), target.group)
    return {
        (target.suite, target.claim)
        for target in targets
        if target.progress(done.get(target.suite, ())) > 0
        and (not in_first_group or target.group == first[target.suite, target.claim])
    }


def steps_of(works: Sequence[Task], targets: Sequence[ClaimTarget]) -> list[WorkStep]:
    """Return the works, which run in this order, with what each settles and adds to."""
    steps = []
    for number, work in enumerate(works):
        before = settled(targets, done_by(works[:number]))
        after = settled(targets, done_by(works[: number + 1]))
        own = sorted(
            {one.claim for one in targets if one.suite == work.suite and work.workload in one.workloads}
        )
        settles = [one for one in own if after[work.suite, one] and not before[work.suite, one]]
        steps.append(WorkStep(work, tuple(settles), tuple(one for one in own if one not in settles)))
    return steps


@dataclass(slots=True)
class TimeBudget:
    """The seconds of a programme: what is left for a work, with a suite's pace so far.

    `first_s`: what the first work of a suite runs in addition; `report_s`: what is kept for its report.
    """

    budget_s: float
    first_s: Mapping[str, float]
    report_s: float
    started: set[str] = field(default_factory=set)
    _expected_s: dict[str, float] = field(default_factory=dict)
    _took_s: dict[str, float] = field(default_factory=dict)

    def expected_s(self, work: Task) -> float:
        """Return how long the work takes, longer where its suite has taken longer than estimated so far."""
        first_s = 0.0 if work.suite in self.started else self.first_s.get(work.suite, 0.0)
        return (work.seconds + first_s) * self.pace(work.suite)

    def pace(self, suite: str) -> float:
        """Return real over estimated seconds of the suite so far, at least 1."""
        expected_s = self._expected_s.get(suite, 0.0)
        return max(1.0, self._took_s[suite] / expected_s) if expected_s else 1.0

    def left_s(self, work: Task, elapsed_s: float) -> float:
        """Return the seconds left for the work, without those for the reports; it may be negative."""
        reports = len(self.started | {work.suite})
        return self.budget_s - elapsed_s - self.report_s * reports

    def fits(self, work: Task, elapsed_s: float) -> bool:
        """Return whether the work is expected to end in time."""
        return self.expected_s(work) <= self.left_s(work, elapsed_s)

    def note(self, work: Task, took_s: float) -> None:
        """Note that the work was run, and how long that took."""
        first_s = 0.0 if work.suite in self.started else self.first_s.get(work.suite, 0.0)
        self.started.add(work.suite)
        estimated_s = self._expected_s.get(work.suite, 0.0) + work.seconds + first_s
        self._expected_s[work.suite] = estimated_s
        self._took_s[work.suite] = self._took_s.get(work.suite, 0.0) + took_s


def within(works: Sequence[Task], budget: TimeBudget) -> tuple[list[Task], list[Task], float]:
    """Return the works that fit the budget, those left out, and the seconds of the first with their reports.

    As a run decides that takes as long as estimated: one that does not fit is left out, a shorter one after
    it may fit. The budget is used up by this.
    """
    fit, left_out, elapsed_s = [], [], 0.0
    for work in works:
        if not budget.fits(work, elapsed_s):
            left_out.append(work)
            continue
        took_s = budget.expected_s(work)
        budget.note(work, took_s)
        elapsed_s += took_s
        fit.append(work)
    return fit, left_out, elapsed_s + budget.report_s * len(budget.started)
