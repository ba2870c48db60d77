"""What each data-parallel group gets in a step: from lengths alone, without a token of the data.

Which documents each step takes from each source is a closed formula of the step. Shapes: steps T, sources S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.records import digest
from suites.dataloader.batch import LoaderError, LoaderSpec
from suites.training.balance import AssignmentMethod, assign

GOLDEN = (5**0.5 - 1) / 2
"""Steps of an additive recurrence: of all, its counts stay closest to their weights (Kesten, 1966)."""

BLOCK = 1024  # steps whose counts are computed at once

KNOWN_STEPS = 16
"""Steps of one block whose results are kept: the next ones that are asked for lie near to them."""

SUM_TOLERANCE = 1e-6


def refuse_weights(spec: LoaderSpec) -> None:
    """Raise `LoaderError` where the mixture's phases or weights are not valid."""
    if not spec.mixture or spec.mixture[0].first_step != 0:
        raise LoaderError("the first phase of the mixture must begin at step 0")
    for number, phase in enumerate(spec.mixture):
        where = f"phase {number} of the mixture"
        if number and phase.first_step <= spec.mixture[number - 1].first_step:
            raise LoaderError(f"{where} begins at step {phase.first_step}, not after the one before")
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
    """Counts per step and source, of `documents_per_step` in total, within a few documents of the weights."""

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
        """Return the documents of each step and source (T, S), by systematic sampling.

        The step's documents lie at equal distances on the line of all shares, shifted from step to step.
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
    """Pieces of documents in the order in which they are packed: `lengths` tokens from token `firsts` on."""

    sources: NDArray[np.int64]
    samples: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def chosen(self, which: NDArray[np.int64]) -> Pieces:
        """Return these pieces."""
        return Pieces(*(one[which] for one in self))


class BalanceSettings(NamedTuple):
    """How pieces are divided over groups: by `method`; n tokens cost `linear` * n + `quadratic` * n^2."""

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


def of_step(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the source of each document of a step, and its number among the step's own of that source."""
    return np.repeat(np.arange(len(counts)), counts), counted(counts)


def counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 to n - 1 for each count n, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


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
        sources, within = of_step(counts)
        size = np.concatenate(
            [lengths[one][used[one] : used[one] + counts[one]] for one in np.flatnonzero(counts).tolist()]
        )
        whole = Pieces(sources, begins[sources] + used[sources] + within, np.zeros_like(sources), size)
        used += counts
        plans.append(divided(pieces_of(whole, spec.context_length), spec, balance, step))
    return plans


def pieces_of(documents: Pieces, context_length: int) -> Pieces:
    """Return the documents in parts of at most a row; those of length 0 have none."""
    parts = -(-documents.lengths // context_length)
    spread = Pieces(*(np.repeat(one, parts) for one in documents))
    firsts = counted(parts) * context_length
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


PLAN_AHEAD = 8  # steps that are planned before they are asked for


class ActorSettings(NamedTuple):
    """What all actors of a loader have in common. `job`: names them; one loader of a name in a Ray namespace.

    `loaders`: source loaders at least, `most_loaders` at most, by the autoscaler. `shadows`: spare ones.
    `timeout_s`: how long a read, or another actor's answer, may take.
    """

    job: str
    balance: BalanceSettings = BalanceSettings()
    loaders: int = 1
    most_loaders: int = 1
    shadows: int = 0
    most_bad_samples: int = 0
    timeout_s: float = 60.0


def digest_of(spec: LoaderSpec, settings: ActorSettings) -> str:
    """Return what identifies the order of the data: not where it is read, or how fast."""
    given = asdict(spec)
    names = ("mixture", "context_length", "documents_per_step", "dp_size", "cp_size", "seed")
    order = {name: given[name] for name in names}
    order["sources"] = [(one.name, one.samples, one.text_B) for one in spec.sources]
    order["balance"] = tuple(settings.balance)
    return digest(order)


TARGET = 0.5  # share of a step for which a source loader may be busy
KEEP = 0.9  # weight of the past in the moving averages, per plan
PATIENCE = 8  # plans for which another number must be wanted before it is used


class Autoscaler:
    """The route of sources to source loaders `0 … most - 1`; those from `most` on are shadows.

    As many are used as keep each busy for at most `TARGET` of a step: a source's load is its documents in the
    next steps times the seconds that reading one takes. At least `loaders`, or one per source, are used.
    """

    def __init__(self, sources: int, loaders: int, most: int, shadows: int) -> None:
        self.used = self._least = min(loaders, sources)
        self.changes = 0
        self._sources, self._most = sources, max(most, loaders)
        self._slots = list(range(self._most))  # the actor that stands for each loader
        self._spares = list(range(self._most, self._most + shadows))
        self._owner = [source % self.used for source in range(sources)]
        self._last_read: dict[int, tuple[float, int]] = {}
        self._document_s = np.zeros(sources)
        self._step_s = math.inf
        self._asked: dict[int, tuple[int, float]] = {}
        self._other, self._waited = self.used, 0

    @property
    def route(self) -> dict[int, int]:
        """Return the actor of each source."""
        return {source: self._slots[owner] for source, owner in enumerate(self._owner)}

    def expects(self, actor: int) -> bool:
        """Return whether an actor is to be there: it reads sources, or is a shadow."""
        return actor in self._slots[: self.used] or actor in self._spares

    def failed(self, actor: int) -> None:
        """Let a shadow take the place of an actor that died, which is a shadow once it has started anew."""
        if actor in self._slots[: self.used] and self._spares:
            self._slots[self._slots.index(actor)] = self._spares.pop(0)
            self._spares.append(actor)

    def asked(self, group: int, step: int, now_s: float) -> None:
        """Note when a group asks for a step: how long steps take follows."""
        if group in self._asked and step > (last := self._asked[group])[0]:
            took_s = (now_s - last[1]) / (step - last[0])
            self._step_s = took_s if math.isinf(self._step_s) else KEEP * self._step_s + (1 - KEEP) * took_s
        self._asked[group] = (step, now_s)

    def read(self, read_s: Mapping[int, tuple[float, int]]) -> None:
        """Note the seconds and documents that a source loader has read of each source since it started."""
        for source, (taken_s, count) in read_s.items():
            before_s, before = self._last_read.get(source, (0.0, 0))
            self._last_read[source] = (taken_s, count)
            if count > before:  # else it started anew
                one_s = (taken_s - before_s) / (count - before)
                old_s = self._document_s[source]
                self._document_s[source] = KEEP * old_s + (1 - KEEP) * one_s if old_s else one_s

    def scale(self, per_step: NDArray[np.float64]) -> tuple[list[int], list[int]]:
        """Change the number of source loaders where another has been wanted for long enough.

        `per_step`: documents of each source per step. Return the actors to start and those to end.
        """
        load_s = self._document_s * per_step
        if self._most == self._least or math.isinf(self._step_s) or self._step_s <= 0:
            return [], []
        wanted = math.ceil(load_s.sum() / (TARGET * self._step_s))
        needed = min(max(wanted, self._least), self._most, self._sources)
        self._waited = self._waited + 1 if needed == self._other else 0
        self._other = needed
        if needed == self.used or self._waited < PATIENCE:
            return [], []
        more, fewer = self._slots[self.used : needed], self._slots[needed : self.used]
        self.used, self._waited = needed, 0
        self.changes += 1
        self._owner = moved(self._owner, load_s, needed)
        return more, fewer


def moved(owner: Sequence[int], load_s: NDArray[np.float64], loaders: int) -> list[int]:
    """Return the source loader of each source for `loaders` of them: as few as can be move, opened anew.

    Sources of those that end, and the largest of those that have more than the mean, go to the one that has
    least, as long as that makes the most loaded one less so.
    """
    new = list(owner)
    busy_s = np.zeros(loaders)
    for source, one in enumerate(new):
        if one < loaders:
            busy_s[one] += load_s[source]
    for source in sorted(range(len(new)), key=lambda one: -load_s[one]):
        least = int(busy_s.argmin())
        if new[source] >= loaders:
            busy_s[least] += load_s[source]
        elif load_s[source] and busy_s[new[source]] > max(
            load_s.sum() / loaders, busy_s[least] + load_s[source]
        ):
            busy_s[new[source]] -= load_s[source]
            busy_s[least] += load_s[source]
        else:
            continue
        new[source] = least
    return new
