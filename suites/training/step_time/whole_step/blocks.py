"""Which layers each pipeline stage has, and how long a step of stages of unlike length takes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from harness.question import ProgramName
from suites.training.step_time.collectives import Amount, Floats


class RankBlocks(NamedTuple):
    """What each pipeline rank has."""

    layers: tuple[int, ...]
    head: int  # the rank with the output layer
    loss: int  # the rank with the loss, which needs the logits


@lru_cache(maxsize=4096)
def blocks_of_ranks(shape: TransformerShape, pp: int, program: ProgramName) -> RankBlocks:
    """Return the layers of each of `pp` pipeline ranks, and which have the output layer and the loss.

    nanotron assigns blocks in turn by their matmuls' parameters, the output layer among them, and goes on to
    the next rank once the sum passes that rank's share (nanotron, models/base.py, build_model). The others
    divide the layers evenly.
    """
    count = shape.num_hidden_layers
    if program != "nanotron" or pp == 1:
        base, more = divmod(count, pp)
        return RankBlocks(tuple(base + (rank < more) for rank in range(pp)), pp - 1, pp - 1)
    layer = (4 * shape.query_size + shape.matrices_of_mlp * shape.intermediate_size) * shape.hidden_size
    costs = [layer] * count + [shape.vocab_size * shape.hidden_size]
    total, passed, rank, head = sum(costs), 0, 0, 0
    layers = [0] * pp
    for index, cost in enumerate(costs):
        if index < count:
            layers[rank] += 1
        else:
            head = rank
        passed += cost
        if passed * pp > total * (rank + 1):
            rank = min(rank + 1, pp - 1)
    return RankBlocks(tuple(layers), head, rank)


FORWARD_SHARE = 1 / 3
"""Of a stage's seconds, those of its forward pass: its backward pass multiplies twice as much."""


def pipeline_s(stage_s: Floats, micro_batches: Amount, virtual_stages: Amount) -> Floats:
    """Return the seconds of a step of 1F1B from those of one micro-batch on each rank, ranks last.

    The slowest rank works without a break once it has its first micro-batch, except while the ranks after it
    have the first one and its own forward passes ahead of that do not take as long, and while the last
    micro-batches come back more slowly than it could take them. Ranks before it work before and after. With
    stages of equal length this is (m + p - 1) micro-batches; interleaving divides p - 1 by the stages per
    rank (Narayanan et al., arXiv 2104.04473, section 2.2.2). `schedule.stepped` steps it through time.
    """
    count, ranks = np.asarray(micro_batches, dtype=float), np.arange(stage_s.shape[-1])
    at = stage_s.argmax(axis=-1)
    slowest = stage_s.max(axis=-1)
    after_s = np.where(ranks > at[:, None], stage_s, 0.0)
    before = np.where(ranks < at[:, None], stage_s, 0.0).sum(axis=-1)
    ahead = np.minimum(ranks[-1] - at, count - 1)
    filling = np.maximum(after_s.sum(axis=-1) - ahead * slowest * FORWARD_SHARE, 0.0)
    draining = ahead * np.maximum(after_s.max(axis=-1) - slowest * (1 - FORWARD_SHARE), 0.0)
    plain = before + filling + draining
    interleaved = (stage_s.sum(axis=-1) - slowest) / virtual_stages
    seconds: Floats = count * slowest + np.where(np.asarray(virtual_stages) > 1, interleaved, plain)
    return seconds
