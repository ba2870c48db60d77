"""The dataloader_balance suite: which data-parallel group trains on which document, and what balance gains.

Steps are simulated: a step costs the FLOP of its slowest group, and nothing else takes time. All methods of
assignment get the same documents.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

import numpy as np

from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.dataloader_balance.steps import StepItems, items_of, known_lengths
from suites.dataloader_balance.subject import Subject, Workload
from suites.training.balance.balance import FloatArray, IntArray, assign, loads, lower_bound

ROUNDING = 1e-9
"""Relative rounding of sums of FLOP."""

NEAR_BOUND = 1.02
"""What counts as balanced: a slowest group at most 2 % above the lower bound."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline, which deals items to groups in the order of their arrival.

    Raises `Unavailable` where lengths are missing or cannot be read.
    """
    subject = Subject(Workload(**workload), seed)
    if subject.workload.lengths_from != "log_normal":
        known_lengths(subject.workload)
    return subject


def planned(subject: Subject, items: StepItems) -> IntArray:
    """Return the group of each item; raises `Unavailable` for a method that cannot limit a group's tokens."""
    given, method = subject.workload, subject.method
    most_tokens = given.most_tokens
    if method == "greedy" and most_tokens is not None:
        return assign(
            items.costs, given.groups, method, subject.seed, tokens=items.tokens, most_tokens=most_tokens
        )
    if method == "karmarkar_karp" and most_tokens is not None:
        raise Unavailable("karmarkar_karp: it may give groups any number of rows; expected items=documents")
    return assign(items.costs, given.groups, method, subject.seed)


def check(subject: Subject) -> None:
    """Recompute the first step's loads from the lengths alone; raises `WrongResult`."""
    given, items = subject.workload, items_of(subject, 0)
    group_of = planned(subject, items)
    if group_of.shape != items.costs.shape or not ((group_of >= 0) & (group_of < given.groups)).all():
        raise WrongResult(f"{len(items.costs)} items: not each is in one of {given.groups} groups")
    members: list[list[int]] = [[] for _ in range(given.groups)]
    for tokens, item in zip(items.parts.tolist(), items.part_of.tolist(), strict=True):
        members[group_of[item]].append(tokens)
    expected = [_flop(given, tokens) for tokens in members]
    load = loads(items.costs, group_of, given.groups)
    if not np.allclose(load, expected, rtol=ROUNDING, atol=0):
        group = int(np.argmax(np.abs(load - expected)))
        documents = f"its documents have {expected[group]:.9g}"
        raise WrongResult(f"group {group} has {load[group]:.9g} FLOP; {documents}")
    largest = max(_flop(given, [int(one)]) for one in items.parts)
    _refuse_impossible(subject, max(expected), math.fsum(expected) / given.groups, largest)
    if given.most_tokens is not None and max(map(sum, members)) > given.most_tokens:
        raise WrongResult(f"a group has {max(map(sum, members))} tokens and room for {given.most_tokens}")


def _flop(given: Workload, lengths: list[int]) -> float:
    """Return the FLOP of documents, one by one."""
    return math.fsum(given.flop.linear * one + given.flop.quadratic * one * one for one in lengths)


def _refuse_impossible(subject: Subject, slowest: float, mean: float, largest: float) -> None:
    """Raise `WrongResult` for a step below its bound, or one that LPT cannot have planned."""
    least = max(mean, largest)
    if slowest < least * (1 - ROUNDING):
        raise WrongResult(f"slowest group: {slowest:.9g} FLOP; no assignment has less than {least:.9g}")
    given = subject.workload
    most = mean + largest * (1 - 1 / given.groups)
    by_lpt = subject.method == "greedy" and given.items == "documents"
    if by_lpt and slowest > most * (1 + ROUNDING):
        raise WrongResult(f"slowest group: {slowest:.9g} FLOP; LPT gives it at most {most:.9g}")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    given = subject.workload
    return {
        "device": "simulated",
        "device_name": "",
        "method": subject.method,
        "data": _data(given),
        "context_length": str(given.context_length),
        "groups": str(given.groups),
        "items": given.items,
        "source": given.source,
    }


def _data(given: Workload) -> str:
    """Return where the lengths come from, in words."""
    if given.lengths_from == "log_normal":
        return f"log-normal, mean {given.mean_tokens:g}, sigma {given.sigma:g}"
    return given.lengths_file if given.lengths_from == "file" else "listed lengths"


def sample(subject: Subject) -> Iterator[Reading]:
    """Assign the items of each step; yield what its slowest group costs, and what planning took."""
    given = subject.workload
    simulated = Origin.CALCULATED if given.lengths_from == "list" else Origin.SIMULATED
    near = 0
    for step in range(given.steps):
        items = items_of(subject, step)
        begin_s = time.perf_counter()
        group_of = planned(subject, items)
        planning_s = time.perf_counter() - begin_s
        load = loads(items.costs, group_of, given.groups)
        for metric, value in step_metrics(given, items, load).items():
            yield Reading(metric, "1", value, simulated)
        yield Reading("planning_time", "s", planning_s, Origin.MEASURED)
        near += bool(load.max() <= NEAR_BOUND * lower_bound(items.costs, given.groups))
    yield Reading("steps_near_bound", "1", near / given.steps, simulated)
    yield Reading("items_per_group", "1", len(items.costs) / given.groups, simulated)


def step_metrics(given: Workload, items: StepItems, load: FloatArray) -> dict[str, float]:
    """Return the metrics of one step from the loads (G,) of its groups: FLOP and ratios."""
    slowest = float(load.max())
    in_order = loads(items.costs, assign(items.costs, given.groups, "in_order"), given.groups)
    metrics = {
        "step_cost": slowest,
        "slowest_over_mean": slowest / float(load.mean()),
        "slowest_over_bound": slowest / lower_bound(items.costs, given.groups),
        "speedup": float(in_order.max()) / slowest,
        "largest_item_over_mean": float(items.costs.max()) / float(load.mean()),
    }
    if load.min() > 0:
        metrics["slowest_over_fastest"] = slowest / float(load.min())
    return metrics
