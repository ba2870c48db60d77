"""Many workloads as one, whose inputs are arrays over them, for formulas evaluated at once. Sizes: runs R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suites.limits.subject import Workload
from suites.training.step_time.collectives import Amount


def stacked(works: Sequence[Workload]) -> Workload:
    """Return one workload; an input in which they differ is an array (R,), the others are numbers."""
    changed: dict[str, Any] = {}
    for one in fields(Workload):
        values = [getattr(work, one.name) for work in works]
        if any(value != values[0] for value in values):
            changed[one.name] = np.array(values, dtype=float)
    return replace(works[0], **changed)


def taken(stack: Workload, runs: NDArray[np.intp]) -> Workload:
    """Return the workload of each of these runs, in their order."""
    arrays: dict[str, Any] = {
        one.name: value[runs]
        for one in fields(Workload)
        if isinstance(value := getattr(stack, one.name), np.ndarray)
    }
    return replace(stack, **arrays) if arrays else stack


def at(value: Amount, index: NDArray[np.intp]) -> Amount:
    """Return an array's elements, or the number that all have."""
    return value[index] if isinstance(value, np.ndarray) and value.ndim else value
