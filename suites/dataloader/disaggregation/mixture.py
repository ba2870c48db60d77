"""Which documents each step takes from each source: a closed formula of the step, without state.

Shapes: steps T, sources S.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suites.dataloader.batch import LoaderError, LoaderSpec

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
