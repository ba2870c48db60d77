"""What each data-parallel group gets in a step: from lengths alone, without a token of the data.

What all actors of a loader have in common, and what identifies the order of their data.
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

from suites.dataloader.batch import LoaderSpec
from suites.dataloader.disaggregation.mixture import Mixture
from suites.training.balance.balance import AssignmentMethod, assign

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
    """How pieces are divided over groups: by `method` of suites.training.balance.balance, with these costs.

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
