"""Seconds of single operators against a roofline, and the FLOP of a training step."""

from __future__ import annotations

import numpy as np

from harness.instruments.transformer.flop import TRAINING_FLOP
from suites.training.step_time.collectives import Amount


def training_flop(parameters: Amount, tokens: Amount) -> Amount:
    """Return the model FLOP of a step on `tokens` tokens: 6 per parameter and token.

    Kaplan et al., arXiv 2001.08361, section 2.1. Attention scores are left out, which are few where the
    sequence is short compared with the hidden size, and so is what activation checkpointing recomputes.
    """
    return TRAINING_FLOP * parameters * tokens


def roofline_s(
    flop: Amount,
    peak_FLOP_per_s: float,
    efficiency: float,
    moved_B: Amount = 0.0,
    memory_B_per_s: float = 1.0,
) -> Amount:
    """Return the seconds of an operator: its FLOP at the peak or its bytes at the memory's rate.

    The longer of both counts, over the share `efficiency` of both rates that it reaches (Williams et al.,
    Roofline, CACM 2009).
    """
    longer_s: Amount = np.maximum(flop / peak_FLOP_per_s, moved_B / memory_B_per_s)
    return longer_s / efficiency
