"""How computation and communication share time: overlap, and the bubble of a pipeline."""

from __future__ import annotations

import numpy as np

from suites.training.step_time.collectives import Amount, Floats


def overlapped_s(one_s: Amount, other_s: Amount, exposed: float) -> Floats:
    """Return the seconds of both, where the longer hides all but a share `exposed` of the shorter.

    exposed 1: one after the other. exposed 0: the longer alone. exposed 1 / chunks: a pipeline of two stages,
    of which the first chunk of the shorter is not hidden.
    """
    both_s: Floats = np.maximum(one_s, other_s) + exposed * np.minimum(one_s, other_s)
    return both_s


def bubble_s(stages: Amount, stages_per_rank: Amount, micro_batch_s: Floats) -> Floats:
    """Return the seconds in which a rank of a pipeline waits in a step of 1F1B.

    (p - 1) / v micro-batches: Narayanan et al., arXiv 2104.04473, section 2.2.2.
    """
    return (stages - 1) / stages_per_rank * micro_batch_s
