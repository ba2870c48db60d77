"""The cost of a GPU-hour for every combination of a few inputs, for controls of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from harness.records import Origin, Reading, Unavailable
from suites.cost.cost_model import Amount, cost_parts
from suites.cost.inputs import refuse_unknown
from suites.cost.subject import OF_MACHINE, OWNER, Subject

MOST = 10_000
"""Combinations that are calculated at most."""


def checked_combinations(given: Mapping[str, Any]) -> None:
    """Raise `Unavailable` where an input is unknown, has no list of numbers, or there are too many."""
    refuse_unknown(given, (*OWNER, *OF_MACHINE), "combinations")
    for name, values in given.items():
        if not isinstance(values, list) or not values:
            raise Unavailable(f"combinations.{name}={values}: expected a list of numbers")
        for one in values:
            if not isinstance(one, int | float) or not 0 <= one < math.inf:
                raise Unavailable(f"combinations.{name}: {one}; expected numbers of at least 0")
    count = math.prod(len(values) for values in given.values())
    if count > MOST:
        raise Unavailable(f"combinations: {count:,}; expected at most {MOST:,}")


def combination_readings(subject: Subject) -> Iterator[Reading]:
    """Yield both costs and the break-even by combination; inputs of a machine are those of the dearer one."""
    given = subject.workload.combinations
    if not given:
        return
    places = list(product(*given.values()))
    columns: dict[str, Amount] = dict(zip(given, np.array(places, float).T, strict=True))
    owner = {**subject.owner.values, **{name: columns[name] for name in OWNER if name in columns}}
    dearer = {
        **subject.machine.inputs.values,
        **{name: columns[name] for name in OF_MACHINE if name in columns},
    }
    ours, base = (
        np.broadcast_to(cost_parts(inputs, owner, machine.gpus).total, len(places))
        for inputs, machine in ((dearer, subject.machine), (subject.baseline.inputs.values, subject.baseline))
    )
    for place, dear, cheap in zip(places, ours, base, strict=True):
        method = ", ".join(f"{name}={value:g}" for name, value in zip(given, place, strict=True))
        yield Reading("baseline_rate", "USD/h", float(cheap), Origin.CALCULATED, method)
        yield Reading("cost_rate", "USD/h", float(dear), Origin.CALCULATED, method)
        yield Reading("break_even", "1", float(dear / cheap), Origin.CALCULATED, method)
