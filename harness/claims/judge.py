"""(claims, records) -> verdicts: compare each interpretation of each claim with what was recorded. Pure.

More than two variants are compared in an order, and in all combinations of several factors. A claim that
orders variants has a step from each to the next. Of a full factorial, a combination's gain is the baseline's
time over its own, in the same round of the same process. Every value of a factor is a product of powers of
such gains, so its logarithm is a sum over combinations within a round, and `harness.statistics.ratio` gives
its interval as it does for two variants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from harness.claims.model import AdjacentRatio, Claim, Difference, Interpretation, Verdict
from harness.claims.values import (
    AGAIN,
    ClaimValue,
    NoValueError,
    RecordsByVariant,
    compare,
    missing_reason,
    noise_around,
    origin_of,
    usable_of,
    value_of,
)
from harness.records import Origin, Record, Status, measurement, wrong_variants

if TYPE_CHECKING:
    from harness.statistics import Ratio


class Order(NamedTuple):
    """Variants in the order that a claim gives them."""

    steps: tuple[AdjacentRatio, ...]
    records: Mapping[str, Sequence[Record]]  # of each variant, those that have the metric
    value: ClaimValue  # of the smallest step, which decides, with a record of its later variant


def order_of(interpretation: Interpretation, cells: RecordsByVariant) -> Order:
    """Return the steps between the variants; raises `NoValueError`, which names the variant."""
    order = interpretation.order
    records = {variant: _of_variant(interpretation, variant, cells.get(variant, ())) for variant in order}
    origins = {variant: origin_of(interpretation, of) for variant, of in records.items()}
    _refuse_unlike("origins", origins)
    _refuse_unlike("units", {variant: _unit(interpretation, of[0]) for variant, of in records.items()})
    steps = tuple(_step(interpretation, pair, records) for pair in pairwise(order))
    least = min(steps, key=lambda step: step.ratio)
    record, noise = records[least.after][0], _noise(interpretation, least, cells)
    origin, rests_on = origins[order[0]], (least.basis, least.processes, least.samples)
    value = ClaimValue(
        least.ratio, least.low, least.high, origin, record, record.conditions, *rests_on, noise
    )
    return Order(steps, records, value)


def increases(claim: Claim, ratio: float) -> bool:
    """Return whether a step of this ratio counts: above 1, and as much as the claim asks for."""
    return ratio > 1 and ratio >= claim.accepted[0]


def order_outcome(claim: Claim, steps: Sequence[AdjacentRatio]) -> str:
    """Return the outcome: holds where every step surely increases, falls short where one surely does not."""
    if failing_steps(claim, steps):
        return "falls short"
    return "undecided" if undecided_steps(claim, steps) else "holds"


def failing_steps(claim: Claim, steps: Sequence[AdjacentRatio]) -> list[AdjacentRatio]:
    """Return the steps that surely do not increase."""
    return [step for step in steps if not increases(claim, step.high)]


def undecided_steps(claim: Claim, steps: Sequence[AdjacentRatio]) -> list[AdjacentRatio]:
    """Return the steps whose ends lie on both sides of an increase."""
    return [step for step in steps if increases(claim, step.high) and not increases(claim, step.low)]


def _of_variant(interpretation: Interpretation, variant: str, records: Sequence[Record]) -> list[Record]:
    """Return the variant's records that have the metric, at least one of them ok; raises `NoValueError`."""
    if not records:
        raise NoValueError(f"no record of {variant} on {interpretation.workload}")
    try:
        usable = usable_of(interpretation._replace(variant=variant), records)
        if not any(record.status == Status.OK for record in usable):
            raise NoValueError(missing_reason(interpretation, usable[0]))
        origin_of(interpretation, usable)
        well = (record for record in usable if record.status == Status.OK)
        measured = (measurement(one, interpretation.metric, interpretation.method) for one in well)
        samples = [value for one in measured if one is not None for value in one.samples]
        if not samples or not all(math.isfinite(value) and value > 0 for value in samples):
            raise NoValueError(f"not every {interpretation.metric} by {interpretation.method} is above 0")
    except NoValueError as reason:
        raise NoValueError(f"{variant}: {reason}", records[0].cell.id) from None
    return usable


def _unit(interpretation: Interpretation, record: Record) -> str:
    measured = measurement(record, interpretation.metric, interpretation.method)
    return measured.unit if measured is not None else ""


def _refuse_unlike(what: str, of_variants: Mapping[str, str]) -> None:
    if len(set(of_variants.values())) > 1:
        each = ", ".join(f"{variant} {value}" for variant, value in of_variants.items())
        raise NoValueError(f"its variants have different {what} ({each})")


def _step(
    interpretation: Interpretation, variants: tuple[str, str], records: Mapping[str, Sequence[Record]]
) -> AdjacentRatio:
    """Return the step, by pairs where several processes have both variants, else by the ranges of samples."""
    before, after = (records[variant] for variant in variants)
    ratio = compare(after, before, interpretation.metric, interpretation.method, least_processes=2)
    return AdjacentRatio(
        *variants, ratio.value, ratio.low, ratio.high, ratio.basis, ratio.processes, ratio.rounds
    )


def _noise(
    interpretation: Interpretation, least: AdjacentRatio, cells: RecordsByVariant
) -> tuple[float, float] | None:
    """Return the noise band of the first variant, or of the baseline, if the smallest step lies in it."""
    candidates = (interpretation.order[0], "baseline")
    variant = next((one for one in candidates if one + AGAIN in cells), None)
    if variant is None or least.basis != "pairs":
        return None
    return noise_around(interpretation, least.ratio, cells.get(variant, ()), cells[variant + AGAIN])


Combination = frozenset[str]  # the factors that a variant has; none: the baseline
NOTHING: Combination = frozenset()

Powers = Mapping[Combination, float]  # of each combination's gain in a product; the baseline's gain is 1


class GreedyStep(NamedTuple):
    """The factor that gains most next, and its gain there."""

    factor: str
    gain: Ratio


@dataclass(frozen=True, slots=True)
class Factorial:
    """Logarithms of all combinations' times, by process and round; `left_out`: factors without some."""

    factors: tuple[str, ...]
    log_s: tuple[tuple[Mapping[Combination, float], ...], ...]
    left_out: tuple[str, ...] = ()

    @property
    def every(self) -> Combination:
        """Return the combination of all factors."""
        return frozenset(self.factors)

    def gain(self, powers: Powers) -> Ratio:
        """Return the product of gains to these powers, with its 95 % interval over processes."""
        from harness import statistics

        products = [[_product(round_, powers) for round_ in process] for process in self.log_s]
        return statistics.ratio(products, [[1.0] * len(one) for one in products])

    def alone(self, factor: str) -> Ratio:
        """Return what the factor gains over the baseline."""
        return self.gain({frozenset({factor}): 1.0})

    def added_last(self, factor: str) -> Ratio:
        """Return what the factor gains when all others are there."""
        return self.gain({self.every: 1.0, self.every - {factor}: -1.0})

    def shapley(self, factor: str) -> Ratio:
        """Return the geometric mean of the factor's gain over all orders; all factors' make `whole`."""
        return self.gain(shapley_powers(factor, self.factors))

    def pair(self, one: str, other: str) -> Ratio:
        """Return what two factors gain together, over the product of what each gains alone."""
        return self.gain({frozenset({one, other}): 1.0, frozenset({one}): -1.0, frozenset({other}): -1.0})

    def whole(self) -> Ratio:
        """Return what all factors gain together."""
        return self.gain({self.every: 1.0})

    def product_of_singles(self) -> Ratio:
        """Return the product of what each factor gains alone."""
        return self.gain({frozenset({one}): 1.0 for one in self.factors})

    def whole_over_product(self) -> Ratio:
        """Return what all gain together over that product: 1 where gains are independent."""
        return self.gain({**{frozenset({one}): -1.0 for one in self.factors}, self.every: 1.0})

    def greedy(self) -> list[GreedyStep]:
        """Return the factors in the order in which each next one gains most, by the middle of its interval.

        The largest of several noisy gains is too large on average; the interval does not count that.
        """
        steps: list[GreedyStep] = []
        taken = NOTHING
        while left := [one for one in self.factors if one not in taken]:
            gains = {one: self.gain({taken | {one}: 1.0, taken: -1.0}) for one in left}
            best = max(left, key=lambda one: gains[one].value)
            taken |= {best}
            steps.append(GreedyStep(best, gains[best]))
        return steps


def shapley_powers(factor: str, factors: Sequence[str]) -> dict[Combination, float]:
    """Return the powers of the Shapley value (Shapley 1953): of each order of `factors`, an equal share.

    s factors come before this one, of n, in s! (n - s - 1)! of n! orders for each choice of them.
    """
    others, count = [one for one in factors if one != factor], len(factors)
    powers: dict[Combination, float] = {}
    for size in range(count):
        share = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for before in map(frozenset, combinations(others, size)):
            powers[before | {factor}] = powers.get(before | {factor}, 0.0) + share
            powers[before] = powers.get(before, 0.0) - share
    return powers


def variant_name(prefix: str, factors: Sequence[str], combination: Combination, baseline: str) -> str:
    """Return the name of the variant with these factors, which it names in the order of `factors`."""
    chosen = [one for one in factors if one in combination]
    return f"{prefix}.{'_'.join(chosen)}" if chosen else baseline


def subsets(factors: Sequence[str]) -> list[Combination]:
    """Return every combination of the factors, the baseline among them."""
    return [frozenset(one) for size in range(len(factors) + 1) for one in combinations(factors, size)]


def factorial_of(
    records: Iterable[Record], factors: Sequence[str], prefix: str, baseline: str, metric: str, method: str
) -> Factorial | None:
    """Return the largest factorial whose combinations all have times in the same repeats.

    None with under two factors. The records are of one workload; what was wrong in one process counts in
    none. Of several machines, that of the larger factorial counts.
    """
    names = {variant_name(prefix, factors, one, baseline): one for one in subsets(factors)}
    machines: dict[str, dict[int, dict[Combination, tuple[float, ...]]]] = {}
    records = list(records)
    wrong = {variant for _, variant in wrong_variants(records)}
    for record in records:
        taken = measurement(record, metric, method)
        combination = names.get(record.cell.optimization) if record.cell.optimization not in wrong else None
        if combination is not None and record.status == Status.OK and taken is not None and taken.samples:
            repeats = machines.setdefault(record.machine, {})
            repeats.setdefault(record.cell.repeat, {})[combination] = taken.samples
    found = [one for samples in machines.values() if (one := _largest(samples, factors)) is not None]
    return max(found, key=lambda one: (len(one.factors), len(one.log_s)), default=None)


def _largest(
    repeats: Mapping[int, Mapping[Combination, tuple[float, ...]]], factors: Sequence[str]
) -> Factorial | None:
    for size in range(len(factors), 1, -1):
        for chosen in combinations(factors, size):
            needed = subsets(chosen)
            every = [samples for _, samples in sorted(repeats.items())]
            if whole := [samples for samples in every if all(one in samples for one in needed)]:
                left_out = tuple(one for one in factors if one not in chosen)
                return Factorial(chosen, tuple(_rounds(one, needed) for one in whole), left_out)
    return None


def _rounds(
    samples: Mapping[Combination, tuple[float, ...]], needed: Sequence[Combination]
) -> tuple[dict[Combination, float], ...]:
    count = min(len(samples[one]) for one in needed)
    return tuple({one: math.log(samples[one][index]) for one in needed} for index in range(count))


def _product(log_s: Mapping[Combination, float], powers: Powers) -> float:
    return math.exp(math.fsum(power * (log_s[NOTHING] - log_s[one]) for one, power in powers.items()))


NOT_JUDGED = "not judged"  # the difference of every value on a claim whose outcome the set-up fixes


def judge(claims: Iterable[Claim], records: Sequence[Record], points: bool = False) -> list[Verdict]:
    """Return a verdict per interpretation, in order; `points`: too few values are compared as they are."""
    cells: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        cell = record.cell
        cells.setdefault((cell.suite, cell.workload), {}).setdefault(cell.optimization, []).append(record)
    return [
        _verdict(claim, interpretation, cells.get((claim.suite, interpretation.workload), {}), points)
        for claim in claims
        for interpretation in claim.interpretations
    ]


def outcome(claim: Claim, low: float, high: float) -> str:
    """Compare the interval from `low` to `high` with the band that the claim accepts."""
    least, most = claim.accepted
    if least <= low and high <= most:
        return "holds"
    if low > most:
        return "exceeds"
    if high < least:
        return "falls short"
    return "undecided"


def differences(
    claim: Claim, recorded: Mapping[str, str], origin: str, status: str = Status.OK
) -> list[Difference]:
    """Return the conditions of a claim that a value does not meet.

    A stated condition may allow several values, separated by ` | `, and patterns (`*A100*`). Only values that
    were measured, here or in public, meet a claim, and those of its source's own formula.
    """
    differ, stated = [], claim.conditions
    allowed = [Origin.MEASURED, Origin.PUBLISHED, *([Origin.CALCULATED] if claim.formula else [])]
    if origin not in allowed:
        differ.append(Difference("origin", origin, Origin.MEASURED.value))
    if claim.not_judged:
        differ.append(Difference(NOT_JUDGED, claim.not_judged, ""))
    for name, value in stated.items():
        if name not in recorded or not is_met(recorded[name], value):
            differ.append(Difference(name, recorded.get(name, ""), value))
    if status != Status.OK:
        differ.append(Difference("status", status, Status.OK.value))
    return differ


def is_met(recorded: str, stated: str) -> bool:
    """Return whether a recorded condition is one that a claim states; see `differences`."""
    return any(
        fnmatchcase(recorded, allowed) if "*" in allowed else recorded == allowed
        for allowed in stated.split(" | ")
    )


def _verdict(claim: Claim, interpretation: Interpretation, cells: RecordsByVariant, points: bool) -> Verdict:
    try:
        if interpretation.order:
            order = order_of(interpretation, cells)
            differ, found = _differences_of_variants(claim, order), order_outcome(claim, order.steps)
            return _compared(claim, interpretation, order.value, found, differ, order.steps)
        value = value_of(claim, interpretation, cells, points)
        differ = differences(claim, value.conditions, value.origin, value.record.status)
        found = outcome(claim, value.low, value.high)
        return _compared(claim, interpretation, value, found, differ)
    except NoValueError as error:
        records = cells.get(interpretation.variant, ())
        cell = error.cell or (records[0].cell.id if records else "")
        unavailable = Verdict(claim.id, interpretation.name, "unavailable", "", claim.unit)
        return replace(unavailable, cell=cell, reason=str(error))


def _compared(
    claim: Claim,
    interpretation: Interpretation,
    value: ClaimValue,
    outcome: str,
    differ: Sequence[Difference],
    steps: tuple[AdjacentRatio, ...] = (),
) -> Verdict:
    return Verdict(
        claim=claim.id,
        interpretation=interpretation.name,
        outcome=outcome,
        where="elsewhere" if differ else "as stated",
        unit=claim.unit,
        ours=value.ours,
        low=value.low,
        high=value.high,
        ratio=None if claim.upper is not None or value.basis == "bounds" else value.ours / claim.value,
        origin=value.origin,
        cell=value.record.cell.id,
        differs=tuple(differ),
        basis=value.basis,
        processes=value.processes,
        samples=value.samples,
        noise=value.noise,
        steps=steps,
    )


def _differences_of_variants(claim: Claim, order: Order) -> list[Difference]:
    """Return what differs in any record of any variant; names the variants unless all of them differ."""
    variants: dict[Difference, dict[str, None]] = {}
    for variant, records in order.records.items():
        for record in records:
            for difference in differences(claim, record.conditions, order.value.origin, record.status):
                variants.setdefault(difference, {})[variant] = None
    every = len(order.records)
    return [
        difference if len(of) == every else difference._replace(variants=tuple(of))
        for difference, of in variants.items()
    ]
