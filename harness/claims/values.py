"""From records to our value of a claim: which records it speaks of, and what they contain. Pure.

One metric of two variants is compared here alone, for the judge and every report. Values of unlike machines
are kept apart before anything is pooled. A run is also divided into two halves, as if it had been taken
twice: what they do not share is no answer.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.claims.model import Claim, Interpretation
from harness.records import Measurement, Origin, Record, Status, measurement
from harness.statistics import interval_of_mean
from harness.units import counted, human

if TYPE_CHECKING:
    from harness.statistics import Ratio

TIMED = (Origin.MEASURED, Origin.EMULATED)  # origins of values that another run may give otherwise
HALVES = (0, 1)

_Place = tuple[str, str]
_Values = tuple[str, str, str, str, str]


def half_of(records: Sequence[Record], which: int) -> list[Record]:
    """Return one half of a run's processes: of each workload every second one, from the first or second on.

    A workload that ran in one process gives the first or the second half of its rounds, the same rounds of
    every variant, so that pairs stay pairs. In both halves are values that no second run would change
    (calculated, simulated, published), and those of which there is one sample, or one process of several.
    """
    processes, of_values = defaultdict[_Place, set[int]](set), defaultdict[_Values, set[int]](set)
    rounds = defaultdict[_Values, list[int]](list)
    for record in records:
        for one in record.measurements:
            if one.origin in TIMED:
                processes[_place(record)].add(record.cell.repeat)
                of_values[_values(record, one, record.cell.optimization)].add(record.cell.repeat)
                if len(one.samples) > 1:
                    rounds[_values(record, one)].append(len(one.samples))

    def half(record: Record, one: Measurement) -> Measurement | None:
        if one.origin not in TIMED:
            return one
        order = sorted(processes[_place(record)])
        if len(order) > 1:
            alone = len(of_values[_values(record, one, record.cell.optimization)]) == 1
            return one if alone or order.index(record.cell.repeat) % 2 == which else None
        if len(one.samples) < 2:
            return one
        cut = min(rounds[_values(record, one)]) // 2
        return one._replace(samples=one.samples[:cut] if which == 0 else one.samples[cut:])

    kept = []
    for record in records:
        measurements = tuple(found for one in record.measurements if (found := half(record, one)))
        if measurements or not record.measurements:
            kept.append(record._replace(measurements=measurements))
    return kept


def _place(record: Record) -> _Place:
    return record.cell.suite, record.cell.workload


def _values(record: Record, one: Measurement, variant: str = "") -> _Values:
    return (*_place(record), variant, one.metric, one.method)


def of_one_machine(records: Sequence[Record]) -> tuple[list[Record], tuple[str, ...]]:
    """Return the records whose values may be pooled, and a sentence on each workload that had others.

    Machines are alike with the same hardware and library versions. Of each workload, the machine counts that
    has most of its records with values; of several, the first. Records without values stay, since they say
    how a cell ended; but a wrong result elsewhere is no verdict on this machine and its libraries.
    """
    counts: dict[str, Counter[str]] = {}
    for record in records:
        if record.measurements:
            counts.setdefault(record.cell.workload, Counter())[record.machine] += 1
    chosen = {workload: of.most_common(1)[0][0] for workload, of in counts.items()}
    kept, left_out = list[Record](), Counter[str]()
    for record in records:
        workload = record.cell.workload
        counts_anywhere = not record.measurements and record.status != Status.WRONG_RESULT
        if counts_anywhere or record.machine == chosen.get(workload, record.machine):
            kept.append(record)
        else:
            left_out[workload] += 1
    sentences = tuple(
        f"{workload}: left out {counted(left_out[workload], 'cell')} of other machines or libraries, whose "
        "values are not pooled with these"
        for workload in counts
        if left_out[workload]
    )
    return kept, sentences


AGAIN = "_again"  # `baseline_again` is the variant `baseline` a second time: their difference is noise
_Samples = tuple[tuple[float, ...], ...]
_Repeats = dict[int, tuple[float, ...]]


class NoPairsError(Exception):
    """Two variants have no samples that could be compared; the text says why."""


def compare(
    ours: Iterable[Record],
    base: Iterable[Record],
    metric: str,
    method: str,
    draws: bool = False,
    least_processes: int = 1,
) -> Ratio:
    """Return ours over base, of pairs where there are any; `basis` says what the ratio rests on.

    A pair is the samples of both variants of one index in one repeat: those of one round. Where one side has
    more rounds in some of the repeats, its last ones there have no partner; `left_out` counts them. Where it
    has more in every repeat, the two were sampled differently and do not pair. Repeats in which not both
    ended well are left out: after a crash, the rest of a group runs in another process. Samples of unlike
    machines are never pooled or paired: the machine counts on which most repeats have both variants, of
    several the first. `draws`: see `statistics.ratio`.

    - `exact`: every sample of each side is the same, as counted bytes are; there is no interval to give.
    - `single`: one sample on each side, so there is no interval.
    - `pairs`: the 95 % interval over at least `least_processes` repeats, or over the rounds of a single one.
    - `ranges`: samples that do not pair; the ratio of the medians, and the ends of all samples.

    Raises `NoPairsError` where a side has no sample, or one that is not a positive number, was wrong in any
    process, or where the two ran on unlike machines.
    """
    from harness.statistics import Ratio

    own, other = _of_one_machine(*(_by_machine(side, metric, method) for side in (ours, base)))
    what = metric + (f" by {method}" if method else "")
    if not own or not other:
        raise NoPairsError(f"there is no repeat in which both variants have {what}")
    mine, theirs = ([value for one in side.values() for value in one] for side in (own, other))
    if not all(math.isfinite(value) and value > 0 for value in (*mine, *theirs)):
        raise NoPairsError(f"{metric} has a sample that is not a positive number")
    counts = min(len(own), len(other)), min(len(mine), len(theirs))
    if len({*mine}) == len({*theirs}) == 1:
        ratio = mine[0] / theirs[0]
        basis = "single" if len(mine) == len(theirs) == 1 else "exact"
        return Ratio(ratio, ratio, ratio, *counts, basis)
    both = sorted(own.keys() & other.keys())
    if len(both) >= least_processes and any(len(own[repeat]) == len(other[repeat]) for repeat in both):
        rounds = [min(len(own[repeat]), len(other[repeat])) for repeat in both]
        first, second = (
            tuple(side[repeat][:count] for repeat, count in zip(both, rounds, strict=True))
            for side in (own, other)
        )
        paired = _ratio(first, second, draws)
        if math.isfinite(paired.high):
            every = sum(len(own[repeat]) + len(other[repeat]) for repeat in both)
            return paired._replace(left_out=every - 2 * sum(rounds))
    middle = statistics.median(mine) / statistics.median(theirs)
    low, high = min(mine) / max(theirs), max(mine) / min(theirs)
    return Ratio(middle, low, high, *counts, "ranges")


def inverse(ratio: Ratio) -> Ratio:
    """Return base over ours: of two times, the speed-up."""
    return ratio._replace(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _by_machine(records: Iterable[Record], metric: str, method: str) -> dict[str, _Repeats]:
    samples: dict[str, _Repeats] = {}
    for record in records:
        if record.status == Status.WRONG_RESULT:
            raise NoPairsError(f"{record.cell.optimization} gave a wrong result")
        one = measurement(record, metric, method)
        if one is not None and one.samples and record.status == Status.OK:
            samples.setdefault(record.machine, {})[record.cell.repeat] = one.samples
    return samples


def _of_one_machine(ours: dict[str, _Repeats], base: dict[str, _Repeats]) -> tuple[_Repeats, _Repeats]:
    """Return the samples of one machine by repeat; raises `NoPairsError` where no machine has both sides."""
    if not ours or not base:
        return {}, {}
    shared = [(ours[machine], base[machine]) for machine in ours if machine in base]
    if not shared:
        raise NoPairsError("the two variants ran on unlike machines or libraries")
    return max(shared, key=lambda sides: len(sides[0].keys() & sides[1].keys()))


@lru_cache(maxsize=8192)
def _ratio(ours: _Samples, base: _Samples, draws: bool) -> Ratio:
    """Return the ratio; cached, since the judge and every table need it, and the first call imports scipy."""
    from harness.statistics import ratio

    return ratio(ours, base, draws)


REFERENCE = "reference "  # prefix of the conditions of the variant that `relative_to` names


class ClaimValue(NamedTuple):
    """Our value in the claim's unit, between two ends: a statistic of all samples, or a ratio."""

    ours: float
    low: float
    high: float
    origin: str
    record: Record
    conditions: Mapping[str, str]
    basis: str  # see `model.Verdict`
    processes: int
    samples: int
    noise: tuple[float, float] | None = None  # of one side against itself, where our value lies in it


NO_INTERVAL = "too few repeats "  # start of the reason why too few values are not compared
RecordsByVariant = Mapping[str, Sequence[Record]]  # the records of one workload by variant


class NoValueError(Exception):
    """The records have no value for an interpretation; the text says why, `cell` is where it is recorded."""

    def __init__(self, text: str, cell: str = "") -> None:
        super().__init__(text)
        self.cell = cell


def value_of(
    claim: Claim, interpretation: Interpretation, cells: RecordsByVariant, points: bool = False
) -> ClaimValue:
    """Return our value; raises `NoValueError`. `points`: also of too few samples for an interval."""
    if interpretation.relative_to:
        return _speed_up(claim, interpretation, cells, points)
    return _value(claim, interpretation, cells.get(interpretation.variant, ()), points)


def _value(
    claim: Claim, interpretation: Interpretation, records: Sequence[Record], points: bool
) -> ClaimValue:
    """Return the value from the samples of all repeats together; raises `NoValueError`."""
    usable = usable_of(interpretation, records)
    samples: list[float] = []
    for record in usable:
        measured = measurement(record, interpretation.metric, interpretation.method)
        assert measured is not None
        samples += _in_unit(claim, interpretation, record, measured)
    if not samples or not all(math.isfinite(value) for value in samples):
        raise NoValueError(f"{interpretation.metric} by {interpretation.method} has no finite sample")
    worst = _worst(usable)
    ours, low, high, basis = statistics.median(samples), min(samples), max(samples), "samples"
    if interpretation.stat != "median":
        basis = interpretation.stat
    if basis == "mean" and not (points and len(samples) == 1):
        if len(samples) < 2:
            raise NoValueError(f"one sample of {interpretation.metric}, whose mean has no interval")
        ours, low, high = interval_of_mean(samples)
    elif basis in ("min", "max"):
        ours = low = high = low if basis == "min" else high
    origin = origin_of(interpretation, usable)
    return ClaimValue(ours, low, high, origin, worst, worst.conditions, basis, len(usable), len(samples))


def _speed_up(
    claim: Claim, interpretation: Interpretation, cells: RecordsByVariant, points: bool
) -> ClaimValue:
    """Return reference over variant in pairs; raises `NoValueError`. The noise is of the side run twice."""
    reference = interpretation.relative_to
    usable = usable_of(interpretation, cells.get(interpretation.variant, ()))
    base = usable_of(interpretation._replace(variant=reference), cells.get(reference, ()))
    if claim.unit != "1":
        raise NoValueError(f"a ratio has no unit, the claim is in {claim.unit}")
    draws = interpretation.stat == "mean"
    try:
        ratio = inverse(compare(usable, base, interpretation.metric, interpretation.method, draws))
    except NoPairsError as reason:
        raise NoValueError(str(reason)) from None
    origin = origin_of(interpretation, [*usable, *base])
    without = ratio.basis == "ranges" or (ratio.basis == "single" and origin != Origin.CALCULATED)
    if without and not points:
        by = f" by {interpretation.method}" if interpretation.method else ""
        raise NoValueError(
            f"{NO_INTERVAL}in which both variants have as many rounds of {interpretation.metric}{by}; more "
            "repeats give an interval"
        )
    twice, first = reference, base
    if interpretation.variant + AGAIN in cells and reference + AGAIN not in cells:
        twice, first = interpretation.variant, usable
    noise = noise_around(interpretation, ratio.value, first, cells.get(twice + AGAIN, ()))
    worst = _worst(usable)
    conditions = {f"{REFERENCE}{name}": value for name, value in _worst(base).conditions.items()}
    conditions |= worst.conditions
    rests_on = ratio.basis, ratio.processes, ratio.rounds
    return ClaimValue(ratio.value, ratio.low, ratio.high, origin, worst, conditions, *rests_on, noise)


def noise_around(
    interpretation: Interpretation, ours: float, base: Sequence[Record], again: Sequence[Record]
) -> tuple[float, float] | None:
    """Return the band in which `base` differs from itself if the ratio `ours` lies in it, else None."""
    draws = interpretation.stat == "mean"
    try:
        noise = compare(again, base, interpretation.metric, interpretation.method, draws)
    except NoPairsError:
        return None
    band = max(noise.high, 1 / noise.low)
    return (1 / band, band) if 1 / band <= ours <= band else None


def usable_of(interpretation: Interpretation, records: Sequence[Record]) -> list[Record]:
    """Return the claim's records with the metric, by repeat; raises `NoValueError`, also for a wrong one."""
    if not records:
        raise NoValueError(f"no record of {interpretation.variant} on {interpretation.workload}")
    others = [other for record in records if (other := _another_workload(interpretation, record))]
    records = [record for record in records if not _another_workload(interpretation, record)]
    if not records:
        raise NoValueError(others[0])
    if wrong := [record for record in records if record.status == Status.WRONG_RESULT]:
        raise NoValueError(missing_reason(interpretation, wrong[0]))
    usable = [one for one in records if measurement(one, interpretation.metric, interpretation.method)]
    if not usable:
        raise NoValueError(missing_reason(interpretation, records[0]))
    return sorted(usable, key=lambda record: record.cell.repeat)


def origin_of(interpretation: Interpretation, records: Sequence[Record]) -> str:
    """Return the one origin of the metric in all records that have it; raises `NoValueError`."""
    measurements = (measurement(record, interpretation.metric, interpretation.method) for record in records)
    origins = {one.origin for one in measurements if one is not None}
    if len(origins) > 1:
        raise NoValueError(f"its repeats have different origins ({', '.join(sorted(origins))})")
    return origins.pop()


def _worst(records: Sequence[Record]) -> Record:
    return next((record for record in records if record.status != Status.OK), records[0])


def _another_workload(interpretation: Interpretation, record: Record) -> str:
    """Return what makes the workload that was run differ from the claim's; "" where nothing does."""
    run = record.cell.config.get("workload", {})
    known = {name: value for name, value in interpretation.defaults.items() if name in run}
    expected = {**interpretation.requires, **known}
    differ = [name for name, value in expected.items() if name not in run or run[name] != value]
    if not differ:
        return ""
    had = ", ".join(_field(name, run[name]) if name in run else f"no {name} recorded" for name in differ)
    claimed = ", ".join(_field(name, expected[name]) for name in differ)
    return f"{interpretation.workload} was run with {had}; this claim is about {claimed}"


def _field(name: str, value: Any) -> str:
    number = isinstance(value, int | float)
    return f"{name} {human(value, 'B') if number and name.endswith('_B') else value}"


def _in_unit(
    claim: Claim, interpretation: Interpretation, record: Record, measured: Measurement
) -> list[float]:
    """Return the samples in the claim's unit, divided by the metric `divide_by`; raises `NoValueError`."""
    unit, divisor = measured.unit, 1.0
    if interpretation.divide_by:
        per = measurement(record, interpretation.divide_by)
        if per is None or not per.samples:
            raise NoValueError(f"the cell has no {interpretation.divide_by} to divide by")
        divisor = statistics.median(per.samples)
        if per.unit != "1":
            unit = "1" if per.unit == measured.unit else f"{measured.unit}/{per.unit}"
        if not math.isfinite(divisor) or divisor <= 0:
            raise NoValueError(f"its {interpretation.divide_by} is {divisor:g}; nothing can be divided by it")
    if unit != claim.unit:
        raise NoValueError(f"{interpretation.metric} is recorded in {unit}, the claim is in {claim.unit}")
    return [value / divisor for value in measured.samples]


def missing_reason(interpretation: Interpretation, record: Record) -> str:
    """Return why the record has no value for the interpretation."""
    metric, method = interpretation.metric, interpretation.method
    if record.status != Status.OK:
        reason = f" ({record.reason.strip().rstrip('.')})" if record.reason.strip() else ""
        return f"the cell ended as {record.status.replace('_', ' ')}{reason}"
    notes = [text for text in record.notes if text.partition(":")[0] in (metric, method)]
    return f"the cell has no {metric} by {method}" + (f" ({'; '.join(notes).rstrip('.')})" if notes else "")
