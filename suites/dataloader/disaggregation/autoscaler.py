"""Which source loader reads which source, and how many source loaders there are.

Each source's load is its documents per step, as the next steps' plans have them, times the seconds that
reading one takes, as source loaders report. As many source loaders are used as keep each busy for at most
`TARGET` of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

TARGET = 0.5
"""Share of a step for which a source loader may be busy."""

KEEP = 0.9
"""Weight of the past in the moving averages, per plan."""

PATIENCE = 8
"""Plans for which another number must be wanted before it is used."""


class Autoscaler:
    """The route of sources to source loaders `0 … most - 1`; those from `most` on are shadows.

    At least `loaders` are used, or one per source where there are fewer sources.
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

        `per_step`: documents of each source that a step takes. Return the actors to start and those to end.
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
    """Return the source loader of each source, where there are `loaders` now: as few as can be move.

    What moves is opened anew. Sources of source loaders that end, and the largest of those that have more
    than the mean, go to the one that has least, as long as that makes the most loaded one less so.
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
