"""What each data-parallel group gets in a step: from lengths alone, without a token of the data.

What all actors of a loader have in common, and what identifies the order of their data.

Which documents each step takes from each source: a closed formula of the step, without state.

Shapes: steps T, sources S.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.dataloader.batch import LoaderError, LoaderSpec
from suites.training.balance import AssignmentMethod, assign

GOLDEN = (5**0.5 - 1) / 2
"""Steps of an additive recurrence: of all, its counts stay closest to their weights (Kesten, 1966)."""

BLOCK = 1024
"""Steps whose counts are computed at once."""

KNOWN_STEPS = 16
"""Steps of one block whose results are kept: the next ones that are asked for lie near to them."""

SUM_TOLERANCE = 1e-6


def refuse_weights(spec: LoaderSpec) -> None:
    """Raise `LoaderError` where the mixture's phases or weights are not valid."""
    if not spec.mixture or spec.mixture[0].first_step != 0:
        raise LoaderError("the first phase of the mixture must begin at step 0")
    previous = -1
    for number, phase in enumerate(spec.mixture):
        where = f"phase {number} of the mixture"
        if phase.first_step <= previous:
            raise LoaderError(f"{where} begins at step {phase.first_step}, not after the one before")
        previous = phase.first_step
        if len(phase.weights) != len(spec.sources):
            raise LoaderError(f"{where} has {len(phase.weights)} weights for {len(spec.sources)} sources")
        if any(not weight >= 0 for weight in phase.weights):
            raise LoaderError(f"{where} has a negative weight")
        if abs(sum(phase.weights) - 1) > SUM_TOLERANCE:
            raise LoaderError(f"the weights of {where} sum to {sum(phase.weights):g}, not to 1")
        for source, weight in zip(spec.sources, phase.weights, strict=True):
            if weight > 0 and not source.samples:
                raise LoaderError(f"source {source.name} has a weight of {weight:g} and no document")


class Mixture:
    """Counts per step and source. Each step takes `documents_per_step` in total, each source its weight's
    share: over any steps, its count differs from the sum of its shares by a few documents.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        refuse_weights(spec)
        self._documents = spec.documents_per_step
        self._firsts = np.array([phase.first_step for phase in spec.mixture])
        weights = np.array([phase.weights for phase in spec.mixture])
        bounds = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
        bounds[:, -1] = 1.0
        self._bounds_PS = bounds * self._documents  # of each phase, the end of each source's share
        self._offset = np.random.default_rng(spec.seed).random()
        self._before: list[NDArray[np.int64]] = [np.zeros(len(spec.sources), np.int64)]  # per block
        self._block = 0
        self._within = {0: self._before[0]}  # of one block: by step

    def counts(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the documents of each step and source (T, S).

        The step's documents lie at equal distances on the line of all shares, shifted from step to step:
        systematic sampling.
        """
        steps = np.arange(first, first + count)
        shift_T = (self._offset + steps * GOLDEN) % 1.0
        bounds_TS = self._bounds_PS[np.searchsorted(self._firsts, steps, side="right") - 1]
        ends_TS = np.ceil(bounds_TS - shift_T[:, None]).clip(0).astype(np.int64)
        ends_TS[:, -1] = self._documents
        counts_TS: NDArray[np.int64] = np.diff(ends_TS, axis=1, prepend=0)
        return counts_TS

    def taken(self, step: int) -> NDArray[np.int64]:
        """Return how many documents of each source all steps before this one take (S)."""
        block = step // BLOCK
        while len(self._before) <= block:
            done = (len(self._before) - 1) * BLOCK
            self._before.append(self._before[-1] + self.counts(done, BLOCK).sum(axis=0))
        if block != self._block:
            self._block, self._within = block, {block * BLOCK: self._before[block]}
        known = max(one for one in self._within if one <= step)
        taken_S: NDArray[np.int64] = self._within[known] + self.counts(known, step - known).sum(axis=0)
        while len(self._within) > KNOWN_STEPS:
            del self._within[sorted(self._within)[1]]  # the first one is the block's
        self._within[step] = taken_S
        return taken_S


Wanted = Mapping[int, tuple[int, int]]
"""First document and number of documents per source; documents count over all epochs."""

Lengths = Mapping[int, NDArray[np.int64]]
"""Tokens of each wanted document, per source; 0 for a bad one, which is left out."""


class Pieces(NamedTuple):
    """Pieces of documents in the order in which they are packed; arrays of one length.

    `lengths` tokens from token `firsts` on, of document `samples` of source `sources`.
    """

    sources: NDArray[np.int64]
    samples: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def chosen(self, which: NDArray[np.int64]) -> Pieces:
        """Return these pieces."""
        return Pieces(*(one[which] for one in self))


class BalanceSettings(NamedTuple):
    """How pieces are divided over groups: by `method` of suites.training.balance, with these costs.

    A piece of n tokens costs `linear` * n + `quadratic` * n^2.
    """

    method: AssignmentMethod = "in_order"
    linear: float = 1.0
    quadratic: float = 0.0


def wanted(mixture: Mixture, first: int, count: int) -> dict[int, tuple[int, int]]:
    """Return the documents that these steps take."""
    begins, ends = mixture.taken(first), mixture.taken(first + count)
    return {
        int(source): (int(begins[source]), int(ends[source] - begins[source]))
        for source in np.flatnonzero(ends > begins)
    }


def plan_steps(
    spec: LoaderSpec,
    mixture: Mixture,
    balance: BalanceSettings,
    first: int,
    count: int,
    lengths_of: Callable[[Wanted], Lengths],
) -> list[list[Pieces]]:
    """Return the pieces of each step and group: a function of the arguments and of the documents' lengths."""
    lengths = lengths_of(wanted(mixture, first, count))
    counts_TS, begins = mixture.counts(first, count), mixture.taken(first)
    used = np.zeros(len(spec.sources), np.int64)
    plans = []
    for step, counts in enumerate(counts_TS, first):
        sources = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = [
            lengths[source][used[source] : used[source] + counts[source]] for source in np.unique(sources)
        ]
        size = np.concatenate(taken)
        whole = Pieces(sources, begins[sources] + used[sources] + within, np.zeros_like(sources), size)
        used += counts
        plans.append(divided(pieces_of(whole, spec.context_length), spec, balance, step))
    return plans


def pieces_of(documents: Pieces, context_length: int) -> Pieces:
    """Return the documents in parts of at most a row; those of length 0 have none."""
    parts = -(-documents.lengths // context_length)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    spread = Pieces(*(np.repeat(one, parts) for one in documents))
    firsts = number * context_length
    return spread._replace(firsts=firsts, lengths=np.minimum(spread.lengths - firsts, context_length))


def divided(pieces: Pieces, spec: LoaderSpec, balance: BalanceSettings, step: int) -> list[Pieces]:
    """Return each group's pieces, in an order shuffled by the step before they are assigned."""
    order = np.random.default_rng((spec.seed, step)).permutation(len(pieces.lengths))
    pieces = pieces.chosen(order)
    n = pieces.lengths.astype(np.float64)
    costs = balance.linear * n + balance.quadratic * n**2
    group = assign(costs, spec.dp_size, balance.method, spec.seed)
    by_group = pieces.chosen(np.argsort(group, kind="stable"))
    ends = np.cumsum(np.bincount(group, minlength=spec.dp_size)).tolist()
    return [Pieces(*(one[low:high] for one in by_group)) for low, high in pairwise([0, *ends])]


class ActorSettings(NamedTuple):
    """What all actors of a loader have in common. `job`: names them; one loader of a name in a Ray namespace.

    `loaders`: source loaders at least, and `most_loaders` at most, where the autoscaler may start more.
    `shadows`: spare ones that take the place of one that died. `plan_ahead`: steps planned before they are
    asked for. `timeout_s`: how long a read, or another actor's answer, may take.
    """

    job: str
    balance: BalanceSettings = BalanceSettings()
    loaders: int = 1
    most_loaders: int = 1
    shadows: int = 0
    plan_ahead: int = 8
    most_bad_samples: int = 0
    timeout_s: float = 60.0


def digest_of(spec: LoaderSpec, settings: ActorSettings) -> str:
    """Return what identifies the order of the data: not where it is read, or how fast."""
    given = asdict(spec)
    names = ("mixture", "context_length", "documents_per_step", "dp_size", "cp_size", "seed")
    order = {name: given[name] for name in names}
    order["sources"] = [(one.name, one.samples, one.text_B) for one in spec.sources]
    order["balance"] = tuple(settings.balance)
    return sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()[:16]
