"""The live bytes of a step as a running sum, and their maximum."""

from __future__ import annotations

from typing import NamedTuple


class Tape:
    """Adds up what a step takes and releases, in its order. Amounts below 0 are releases."""

    def __init__(self) -> None:
        self.live_B = 0.0
        self.peak_B = 0.0

    def add(self, *amounts_B: float) -> None:
        """Take or release bytes, one amount after another."""
        for amount_B in amounts_B:
            self.live_B += amount_B
            self.peak_B = max(self.peak_B, self.live_B)

    def inside(self, *amounts_B: float) -> None:
        """Take bytes, one amount after another, and release all of them."""
        self.add(*amounts_B, -sum(amounts_B))


class StepPrecision(NamedTuple):
    """Bytes per element of a kind of mixed precision.

    `autocast`: weights and the residual stream are fp32, each linear layer casts its weight and its input to
    bf16 and keeps both copies. Without it weights, as they are gathered, and activations have one type.
    """

    stream_B: int  # of the residual stream and what is computed outside of linear layers
    product_B: int  # of the results of linear layers and of attention
    autocast: bool


AUTOCAST = StepPrecision(stream_B=4, product_B=2, autocast=True)
NARROW = StepPrecision(stream_B=2, product_B=2, autocast=False)
WIDE = StepPrecision(stream_B=4, product_B=4, autocast=False)
