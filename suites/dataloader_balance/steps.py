"""The documents of one step, cut to the context length or joined into rows. Sizes: items N.

What a variant of the dataloader_balance suite is: lengths of documents and a method of assignment.

Lengths of real documents in tokens, as quantiles with their sources: published_lengths.jsonl.

A length is drawn by its inverse distribution: a uniform number between 0 and 1 is a probability, and between
two quantiles the logarithm of the length is linear in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.records import Unavailable
from suites.dataloader_balance.workload import Workload
from suites.training.balance import AssignmentMethod, DocumentCost, FloatArray, IntArray, cost, loads


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload, the seed of its documents, what one costs, and how they are assigned to groups."""

    workload: Workload
    seed: int
    cost: DocumentCost
    method: AssignmentMethod = "in_order"


FILE = Path(__file__).parent / "published_lengths.jsonl"


class LengthTable:
    """Quantiles of lengths: probabilities (Q,), rising from 0 to 1, and tokens (Q,)."""

    def __init__(self, probability: NDArray[np.float64], tokens: NDArray[np.int64], source: str) -> None:
        self.probability, self.tokens, self.source = probability, tokens, source

    def at(self, probability: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the lengths, at least 1 token each, below which these shares of all documents lie."""
        drawn = np.exp(np.interp(probability, self.probability, np.log(self.tokens)))
        return np.maximum(1, np.rint(drawn)).astype(np.int64)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the lengths of documents that are drawn independently."""
        return self.at(rng.random(count))


@cache
def published_lengths() -> dict[str, LengthTable]:
    """Return the tables by the name of their documents."""
    tables = {}
    for line in FILE.read_text().splitlines():
        row = json.loads(line)
        probability, tokens = np.array(row["quantiles"]).T
        tables[row["documents_of"]] = LengthTable(probability, tokens.astype(np.int64), row["source"])
    return tables


DRAWN_AT_ONCE = 4096
"""Documents that are drawn at once to fill rows."""


class StepItems(NamedTuple):
    """What a step assigns to groups: tokens and cost of each item (N,), in the order of arrival.

    `parts` and `part_of`: the tokens of each document or part of one, and the item that it is in. `dealt`
    (N,): what a loader that deals in order deals the item with: its document where parts stay together.
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


def draw(given: Workload, count: int, rng: np.random.Generator) -> IntArray:
    """Return the lengths of `count` documents in tokens, at least 1 each; raises `Unavailable`."""
    if given.lengths_from == "list":
        return np.resize(np.array(known_lengths(given), np.int64), count)
    if given.lengths_from == "file":
        return rng.choice(known_lengths(given), count)
    if given.lengths_from == "published":
        return published_lengths()[given.documents_of].draw(count, rng)
    mean = np.log(given.mean_tokens) - given.sigma**2 / 2
    return np.maximum(1, np.rint(rng.lognormal(mean, given.sigma, count))).astype(np.int64)


def known_lengths(given: Workload) -> IntArray:
    """Return the lengths that the workload lists or that its file has; raises `Unavailable`."""
    if given.lengths_from == "list":
        return _checked(given.lengths, "lengths")
    return _lengths_of(Path(given.lengths_file))


@lru_cache(maxsize=4)
def _lengths_of(path: Path) -> IntArray:
    """Return the lengths in a file; raises `Unavailable` where it has none."""
    where = f"lengths_file: {path}"
    try:
        if path.suffix == ".npy":
            return _checked(np.load(path, allow_pickle=False), where)
        if path.suffix == ".json":
            return _checked(json.loads(path.read_text()), where)
    except (OSError, ValueError) as error:
        raise Unavailable(f"{where}: cannot be read ({' '.join(str(error).split())})") from None
    raise Unavailable(f"{where}: expected a .npy or .json file of lengths in tokens")


def _checked(lengths: Any, where: str) -> IntArray:
    """Return lengths as an array; raises `Unavailable` where they are not whole numbers of at least 1."""
    try:
        found = np.asarray(lengths)
    except ValueError:
        found = np.empty(0)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu" or found.min() < 1:
        raise Unavailable(f"{where}: expected a list of whole numbers of at least 1, the tokens of documents")
    return found.astype(np.int64)


def parts_of(documents: IntArray, context_length: int) -> IntArray:
    """Return how many parts of at most the context length each document has."""
    return -(-documents // context_length)


def cut(documents: IntArray, context_length: int) -> IntArray:
    """Return the documents in their order, each in parts of at most the context length."""
    count = parts_of(documents, context_length)
    parts = np.full(int(count.sum()), context_length, np.int64)
    parts[np.cumsum(count) - 1] = documents - (count - 1) * context_length
    return parts


def rows(given: Workload, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return the parts of documents in `count` full rows, and the row of each part.

    Documents are joined in their order and cut where a row is full, as loaders for pretraining do.
    """
    total, ends = count * given.context_length, np.zeros(1, np.int64)
    while ends[-1] < total:
        ends = np.concatenate([ends, ends[-1] + np.cumsum(draw(given, DRAWN_AT_ONCE, rng))])
    full = np.arange(0, total + 1, given.context_length)
    at = np.union1d(ends[ends < total], full)
    return np.diff(at), at[:-1] // given.context_length
