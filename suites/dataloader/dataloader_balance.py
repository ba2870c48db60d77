"""The dataloader_balance suite: which data-parallel group trains on which document, and what balance gains.

Steps are simulated: a step costs what its slowest group costs. A document costs its FLOP, or seconds fitted
to timed steps. All methods get the same documents, cut to the context length or joined into rows. Sizes:
items N. published_lengths.jsonl has quantiles of real documents' lengths, with their sources; between two
quantiles the logarithm of the length is linear in the probability.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.dataloader.document_seconds import cost_of
from suites.dataloader.workload import DataloaderBalanceWorkload
from suites.training.balance import (
    AssignmentMethod,
    DocumentCost,
    FloatArray,
    IntArray,
    assign,
    cost,
    loads,
    lower_bound,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload, the seed of its documents, what one costs, and how they are assigned to groups."""

    workload: DataloaderBalanceWorkload
    seed: int
    cost: DocumentCost
    method: AssignmentMethod = "in_order"


FILE = Path(__file__).parent / "published_lengths.jsonl"


class LengthTable(NamedTuple):
    """Quantiles of lengths: probabilities (Q,), rising from 0 to 1, and tokens (Q,)."""

    probability: FloatArray
    tokens: FloatArray

    def at(self, probability: FloatArray) -> IntArray:
        """Return the lengths, at least 1 token each, below which these shares of all documents lie."""
        return whole(np.exp(np.interp(probability, self.probability, np.log(self.tokens))))


def whole(tokens: FloatArray) -> IntArray:
    """Return lengths as whole numbers of at least 1."""
    return np.maximum(1, np.rint(tokens)).astype(np.int64)


@cache
def published_lengths() -> dict[str, LengthTable]:
    """Return the tables by the name of their documents."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return {row["documents_of"]: LengthTable(*np.array(row["quantiles"]).T) for row in rows}


DRAWN_AT_ONCE = 4096  # documents that are drawn at once to fill rows


class StepItems(NamedTuple):
    """What a step assigns to groups: tokens and cost of each item (N,), in the order of arrival.

    `parts` and `part_of`: the tokens of each document or part of one, and its item. `dealt` (N,): what is
    dealt together has one number.
    """

    tokens: IntArray
    costs: FloatArray
    parts: IntArray
    part_of: IntArray
    dealt: IntArray


def items_of(subject: Subject, step: int) -> StepItems:
    """Return the items of a step; they are the same for every method of assignment."""
    given, rng = subject.workload, np.random.default_rng([subject.seed, step])
    if given.items == "documents":
        documents = draw(given, given.documents_per_step, rng)
        parts = cut(documents, given.context_length)
        part_of = np.arange(len(parts))
    else:
        parts, part_of = rows(given, given.groups * given.rows_per_group, rng)
    costs = loads(cost(parts, *subject.cost), part_of, int(part_of[-1]) + 1)
    dealt = np.arange(len(costs))
    if given.long_documents == "kept":
        dealt = np.repeat(np.arange(len(documents)), parts_of(documents, given.context_length))
    return StepItems(np.bincount(part_of, parts).astype(np.int64), costs, parts, part_of, dealt)


def draw(given: DataloaderBalanceWorkload, count: int, rng: np.random.Generator) -> IntArray:
    """Return the lengths of `count` documents in tokens, at least 1 each."""
    if given.lengths_from == "list":
        return np.resize(np.array(given.lengths, np.int64), count)
    if given.lengths_from == "published":
        return published_lengths()[given.documents_of].at(rng.random(count))
    mean = np.log(given.mean_tokens) - given.sigma**2 / 2
    return whole(rng.lognormal(mean, given.sigma, count))


def parts_of(documents: IntArray, context_length: int) -> IntArray:
    """Return how many parts of at most the context length each document has."""
    return -(-documents // context_length)


def cut(documents: IntArray, context_length: int) -> IntArray:
    """Return the documents in their order, each in parts of at most the context length."""
    count = parts_of(documents, context_length)
    parts = np.full(int(count.sum()), context_length, np.int64)
    parts[np.cumsum(count) - 1] = documents - (count - 1) * context_length
    return parts


def rows(given: DataloaderBalanceWorkload, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return the parts of documents in `count` full rows, and the row of each part.

    Documents are joined in their order and cut where a row is full, as loaders for pretraining do.
    """
    total, ends = count * given.context_length, np.zeros(1, np.int64)
    while ends[-1] < total:
        ends = np.concatenate([ends, ends[-1] + np.cumsum(draw(given, DRAWN_AT_ONCE, rng))])
    full = np.arange(0, total + 1, given.context_length)
    at = np.union1d(ends[ends < total], full)
    return np.diff(at), at[:-1] // given.context_length


ROUNDING = 1e-9  # relative rounding of sums of costs
NEAR_BOUND = 1.02  # what counts as balanced: a slowest group at most 2 % above the lower bound


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline, which deals items to groups in the order of their arrival.

    Raises `Unavailable` for listed lengths that are none, and for a cost that is not known. With cost=timed,
    the first cell of a process times the steps, and the others take its seconds.
    """
    given = DataloaderBalanceWorkload(**workload)
    if given.lengths_from == "list" and not _are_lengths(given.lengths):
        raise Unavailable("lengths: expected a list of whole numbers of at least 1, the tokens of documents")
    return Subject(given, seed, cost_of(given))


def _are_lengths(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(one, int) and one >= 1 for one in given)


def planned(subject: Subject, items: StepItems) -> IntArray:
    """Return the group of each item; raises `Unavailable` for a method that cannot limit a group's tokens."""
    given, method, most_tokens = subject.workload, subject.method, subject.workload.most_tokens
    if method == "greedy" and most_tokens is not None:
        return assign(
            items.costs, given.groups, method, subject.seed, tokens=items.tokens, most_tokens=most_tokens
        )
    if method == "karmarkar_karp" and most_tokens is not None:
        raise Unavailable("karmarkar_karp: it may give groups any number of rows; expected items=documents")
    if method in ("in_order", "random"):
        return dealt(items, given.groups, method, subject.seed)
    return assign(items.costs, given.groups, method)


def dealt(items: StepItems, groups: int, method: AssignmentMethod, seed: int = 0) -> IntArray:
    """Return the group of each item, dealt regardless of cost; what is dealt together stays together."""
    return assign(np.zeros(int(items.dealt[-1]) + 1), groups, method, seed)[items.dealt]


def check(subject: Subject) -> None:
    """Recompute the first step's loads from the lengths alone; raises `WrongResult`."""
    given, items = subject.workload, items_of(subject, 0)
    group_of = planned(subject, items)
    if group_of.shape != items.costs.shape or not ((group_of >= 0) & (group_of < given.groups)).all():
        raise WrongResult(f"{len(items.costs)} items: not each is in one of {given.groups} groups")
    members: list[list[int]] = [[] for _ in range(given.groups)]
    for tokens, item in zip(items.parts.tolist(), items.part_of.tolist(), strict=True):
        members[group_of[item]].append(tokens)
    expected = [_cost(subject, tokens) for tokens in members]
    load = loads(items.costs, group_of, given.groups)
    if not np.allclose(load, expected, rtol=ROUNDING, atol=0):
        group = int(np.argmax(np.abs(load - expected)))
        documents = f"its documents have {expected[group]:.9g}"
        raise WrongResult(f"group {group} has a cost of {load[group]:.9g}; {documents}")
    largest = max(_cost(subject, [int(one)]) for one in items.parts)
    _refuse_impossible(subject, max(expected), math.fsum(expected) / given.groups, largest)
    if given.most_tokens is not None and max(map(sum, members)) > given.most_tokens:
        raise WrongResult(f"a group has {max(map(sum, members))} tokens and room for {given.most_tokens}")


def _cost(subject: Subject, lengths: list[int]) -> float:
    """Return the cost of documents, one by one."""
    return math.fsum(subject.cost.linear * one + subject.cost.quadratic * one * one for one in lengths)


def _refuse_impossible(subject: Subject, slowest: float, mean: float, largest: float) -> None:
    """Raise `WrongResult` for a step below its bound, or one that no plan by cost makes.

    LPT and Karmarkar-Karp leave at most the largest item between the slowest group and any other.
    """
    least = max(mean, largest)
    if slowest < least * (1 - ROUNDING):
        raise WrongResult(f"slowest group: {slowest:.9g}; no assignment has less than {least:.9g}")
    given = subject.workload
    most = mean + largest * (1 - 1 / given.groups)
    by_cost = subject.method in ("greedy", "karmarkar_karp") and given.items == "documents"
    if by_cost and slowest > most * (1 + ROUNDING):
        raise WrongResult(f"slowest group: {slowest:.9g}; {subject.method} gives it at most {most:.9g}")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    given = subject.workload
    return {
        "device": "simulated",
        "device_name": "",
        "method": subject.method,
        "data": {
            "log_normal": f"log-normal, mean {given.mean_tokens:g}, sigma {given.sigma:g}",
            "published": given.documents_of,
            "list": "listed lengths",
        }[given.lengths_from],
        "context_length": str(given.context_length),
        "groups": str(given.groups),
        "items": given.items,
        "cost": given.cost,
        "long_documents": given.long_documents,
        "source": given.source,
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Assign the items of each step; yield what its slowest group costs, and what planning took."""
    given = subject.workload
    simulated = Origin.CALCULATED if given.lengths_from == "list" else Origin.SIMULATED
    step_metric = Reading("step_cost", "1", 0.0, simulated)
    if given.cost != "flop":
        step_metric = Reading("step_time", "s", 0.0, simulated)
    gains, near = [], 0
    for step in range(given.steps):
        items = items_of(subject, step)
        begin_s = time.perf_counter()
        group_of = planned(subject, items)
        planning_s = time.perf_counter() - begin_s
        load = loads(items.costs, group_of, given.groups)
        yield step_metric._replace(value=float(load.max()))
        ratios = step_ratios(given, items, load)
        for metric, value in ratios.items():
            yield Reading(metric, "1", value, simulated)
        yield Reading("planning_time", "s", planning_s, Origin.MEASURED)
        gains.append(ratios["speedup"])
        near += bool(load.max() <= NEAR_BOUND * lower_bound(items.costs, given.groups))
    yield Reading("steps_near_bound", "1", near / given.steps, simulated)
    yield Reading("items_per_group", "1", len(items.costs) / given.groups, simulated)
    yield from _once(subject, sum(gains) / len(gains), simulated)


def _once(subject: Subject, gain: float, simulated: Origin) -> Iterator[Reading]:
    """Yield what is the same for all steps: the cost's attention, and the prediction's error."""
    given, longest = subject.workload, subject.cost.quadratic * subject.workload.context_length
    share = longest / (subject.cost.linear + longest)
    yield Reading("attention_share", "1", share, Origin.CALCULATED)
    if given.published_gain and subject.method in ("greedy", "karmarkar_karp"):
        yield Reading("published_gain", "1", given.published_gain, Origin.PUBLISHED)
        yield Reading("prediction_error", "1", gain / given.published_gain - 1, simulated)


def step_ratios(given: DataloaderBalanceWorkload, items: StepItems, load: FloatArray) -> dict[str, float]:
    """Return ratios of one step by the loads (G,) of its groups."""
    slowest = float(load.max())
    in_order = loads(items.costs, dealt(items, given.groups, "in_order"), given.groups)
    ratios = {
        "slowest_over_mean": slowest / float(load.mean()),
        "slowest_over_bound": slowest / lower_bound(items.costs, given.groups),
        "speedup": float(in_order.max()) / slowest,
        "largest_item_over_mean": float(items.costs.max()) / float(load.mean()),
    }
    if load.min() > 0:
        ratios["slowest_over_fastest"] = slowest / float(load.min())
    return ratios
