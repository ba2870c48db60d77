"""Divide a run into two halves, as if it had been taken twice: what they do not share is no answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Measurement, Origin, Record

TIMED = (Origin.MEASURED, Origin.EMULATED)
"""Origins of values that another run may give otherwise."""

HALVES = (0, 1)

_Place = tuple[str, str]
_Values = tuple[str, str, str]


def half_of(records: Sequence[Record], which: int) -> list[Record]:
    """Return one half of a run's processes: of each workload every second one, from the first or second on.

    A workload that ran in one process gives the first or the second half of its rounds, the same rounds of
    every variant, so that pairs stay pairs. In both halves are values that no second run would change
    (calculated, simulated, published), and those of which there is one sample, or one process of several.
    """
    processes: dict[_Place, set[int]] = {}
    of_values: dict[tuple[_Place, _Values], set[int]] = {}
    rounds: dict[tuple[_Place, str, str], int] = {}
    for record in records:
        place = _place(record)
        for one in record.measurements:
            if one.origin in TIMED:
                processes.setdefault(place, set()).add(record.cell.repeat)
                of_values.setdefault((place, _values(record, one)), set()).add(record.cell.repeat)
                key = place, one.metric, one.method
                if len(one.samples) > 1:
                    rounds[key] = min(rounds.get(key, len(one.samples)), len(one.samples))

    def half(record: Record, one: Measurement) -> Measurement | None:
        place = _place(record)
        if one.origin not in TIMED:
            return one
        order = sorted(processes[place])
        if len(order) > 1:
            alone = len(of_values[place, _values(record, one)]) == 1
            return one if alone or order.index(record.cell.repeat) % 2 == which else None
        if len(one.samples) < 2:
            return one
        cut = rounds[place, one.metric, one.method] // 2
        return one._replace(samples=one.samples[:cut] if which == 0 else one.samples[cut:])

    kept = []
    for record in records:
        measurements = tuple(found for one in record.measurements if (found := half(record, one)))
        if measurements or not record.measurements:
            kept.append(record._replace(measurements=measurements))
    return kept


def _place(record: Record) -> _Place:
    return record.cell.suite, record.cell.workload


def _values(record: Record, one: Measurement) -> _Values:
    return record.cell.optimization, one.metric, one.method
