"""Records of every combination of three factors, whose gains are known: plainly invented, of no machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

from synthetic import made

from harness.records import Record

FACTORS = ("a", "b", "c")
DRIFT = (1.0, 1.3, 1.1, 1.7)  # what the machine does to all variants of a round
Gain = Callable[[frozenset[str]], float]


def independent(chosen: frozenset[str]) -> float:
    return (2.0 if "a" in chosen else 1.0) * (1.5 if "b" in chosen else 1.0) * (0.9 if "c" in chosen else 1.0)


def overlapping(chosen: frozenset[str]) -> float:
    """Return the same, but a and b together gain 2.1 instead of 3; c helps once a is there."""
    both = 0.7 if {"a", "b"} <= chosen else 1.0
    return independent(chosen) * both * (1.4 if {"a", "c"} <= chosen else 1.0)


def variant_of(chosen: Sequence[str]) -> str:
    return f"all.{'_'.join(chosen)}" if chosen else "baseline"


def factorial_records(gain: Gain, processes: int = 3, without: Sequence[str] = ()) -> list[Record]:
    """Return each combination's times, 1 s over its gain per round and process; not those `without`."""
    chosen = [one for size in range(4) for one in combinations(FACTORS, size)]
    records = []
    for repeat, one in product(range(processes), chosen):
        if variant_of(one) not in without:
            samples = tuple(drift * (1 + repeat) / gain(frozenset(one)) for drift in DRIFT)
            figures = {("time", "warm"): ("s", "measured", samples)}
            records.append(made("small", variant_of(one), figures, repeat=repeat))
    return records
