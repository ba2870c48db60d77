"""Records of two arms timed together -> the ratio of their figures, pair by pair. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.records import Record, Status, measurement

if TYPE_CHECKING:
    from harness.statistics import Ratio

AGAIN = "_again"
"""`baseline_again` is the arm `baseline` a second time: what the two differ by is noise."""

_Samples = tuple[tuple[float, ...], ...]


class NoPairsError(Exception):
    """Two arms have nothing that could be paired; the text says why."""


def paired_ratio(
    ours: Iterable[Record], base: Iterable[Record], metric: str, method: str, draws: bool = False
) -> Ratio:
    """Ours over base with its 95 % interval, dimensionless; raises `NoPairsError`.

    A pair is the samples of both arms of one index in one repeat, which is one process. Repeats in which not
    both ended well are left out: after a crash, what is left of a group runs in another process. `draws`:
    see `statistics.ratio`.
    """
    own, other = (_by_repeat(records, metric, method) for records in (ours, base))
    pairs = [(own[repeat], other[repeat]) for repeat in sorted(own.keys() & other.keys())]
    if not pairs:
        raise NoPairsError(
            f"there is no repeat in which both arms have {metric}" + (f" by {method}" if method else "")
        )
    if any(len(one) != len(two) for one, two in pairs):
        raise NoPairsError(f"the rounds of {metric} are not the same number in both arms")
    if not all(math.isfinite(value) and value > 0 for pair in pairs for side in pair for value in side):
        raise NoPairsError(f"{metric} holds a sample that is no number above 0")
    found = _ratio(tuple(one for one, _ in pairs), tuple(two for _, two in pairs), draws)
    if not math.isfinite(found.high):
        raise NoPairsError("so few pairs have no interval; more repeats bring one")
    return found


def inverse(ratio: Ratio) -> Ratio:
    """Base over ours: of two times, the speed-up."""
    return ratio._replace(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _by_repeat(records: Iterable[Record], metric: str, method: str) -> dict[int, tuple[float, ...]]:
    found = {}
    for record in records:
        one = measurement(record, metric, method)
        if one is not None and one.samples and record.status == Status.OK:
            found[record.cell.repeat] = one.samples
    return found


@lru_cache(maxsize=8192)
def _ratio(ours: _Samples, base: _Samples, draws: bool) -> Ratio:
    """Judge and every table of a report ask for the same; scipy, beneath, is imported only where one asks."""
    from harness import statistics

    return statistics.ratio(ours, base, draws)
