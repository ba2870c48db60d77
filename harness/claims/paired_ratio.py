"""Compare one metric of two variants: the one way from records to a ratio, for the judge and every report."""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.records import Record, Status, measurement

if TYPE_CHECKING:
    from harness.statistics import Ratio

AGAIN = "_again"
"""`baseline_again` is the variant `baseline` a second time: their difference is noise."""

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

    mine_and_theirs = [list(records) for records in (ours, base)]
    for side in mine_and_theirs:
        _refuse_wrong(side)
    own, other = _of_one_machine(*(_by_machine(side, metric, method) for side in mine_and_theirs))
    what = metric + (f" by {method}" if method else "")
    if not own or not other:
        raise NoPairsError(f"there is no repeat in which both variants have {what}")
    mine, theirs = ([value for one in side.values() for value in one] for side in (own, other))
    if not all(math.isfinite(value) and value > 0 for value in (*mine, *theirs)):
        raise NoPairsError(f"{metric} has a sample that is not a positive number")
    if len({*mine}) == len({*theirs}) == 1:
        ratio = mine[0] / theirs[0]
        basis = "single" if len(mine) == len(theirs) == 1 else "exact"
        return Ratio(ratio, ratio, ratio, min(len(own), len(other)), min(len(mine), len(theirs)), basis)
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
    return _of_ranges(mine, theirs, min(len(own), len(other)))


def _of_ranges(mine: Sequence[float], theirs: Sequence[float], processes: int) -> Ratio:
    from harness.statistics import Ratio

    middle = plain.median(mine) / plain.median(theirs)
    low, high = min(mine) / max(theirs), max(mine) / min(theirs)
    return Ratio(middle, low, high, processes, min(len(mine), len(theirs)), "ranges")


def inverse(ratio: Ratio) -> Ratio:
    """Return base over ours: of two times, the speed-up."""
    return ratio._replace(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _refuse_wrong(records: Sequence[Record]) -> None:
    if wrong := next((one for one in records if one.status == Status.WRONG_RESULT), None):
        raise NoPairsError(f"{wrong.cell.optimization} gave a wrong result")


def _by_machine(records: Iterable[Record], metric: str, method: str) -> dict[str, _Repeats]:
    samples: dict[str, _Repeats] = {}
    for record in records:
        one = measurement(record, metric, method)
        if one is not None and one.samples and record.status == Status.OK:
            samples.setdefault(record.machine, {})[record.cell.repeat] = one.samples
    return samples


def _of_one_machine(ours: dict[str, _Repeats], base: dict[str, _Repeats]) -> tuple[_Repeats, _Repeats]:
    """Return the samples of one machine by repeat; raises `NoPairsError` where no machine has both sides."""
    if not ours or not base:
        return {}, {}
    shared = [machine for machine in ours if machine in base]
    if not shared:
        raise NoPairsError("the two variants ran on unlike machines or libraries")
    chosen = max(shared, key=lambda machine: len(ours[machine].keys() & base[machine].keys()))
    return ours[chosen], base[chosen]


@lru_cache(maxsize=8192)
def _ratio(ours: _Samples, base: _Samples, draws: bool) -> Ratio:
    """Return the ratio; cached, since the judge and every table need it, and the first call imports scipy."""
    from harness import statistics

    return statistics.ratio(ours, base, draws)
