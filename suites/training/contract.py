"""What a technique promises about its results, compared with plain PyTorch's on the same sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contract:
    """How far a loss may be from plain PyTorch's, as a share of the first loss; infinite: it must only learn.

    `correctness.py` checks it; `correctness.require_learning` states what learning means.
    """

    relative: float

    @property
    def compared(self) -> bool:
        """Return whether losses are compared with plain PyTorch's."""
        return math.isfinite(self.relative)

    def __str__(self) -> str:
        return f"within {self.relative:g}" if self.compared else "changes the mathematics"


def Within(relative: float) -> Contract:
    """The same mathematics in lower precision: losses within `relative` of the first loss."""
    return Contract(relative)


EXACT = Contract(1e-5)
"""The same mathematics in the same types: sums may be taken in another order, and no more."""

CHANGES_THE_MATHEMATICS = Contract(math.inf)
"""Another update than plain PyTorch's: it only has to learn."""


def loosest(contracts: Iterable[Contract]) -> Contract:
    """Return the contract of a combination; of no technique at all it is `EXACT`."""
    return max(contracts, key=lambda one: one.relative, default=EXACT)
