"""Which layers each pipeline stage has, and how long a step of stages of unlike length takes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from suites.training.layouts.layout import Program
from suites.training.layouts.shape import TransformerShape
from suites.training.step_time.collectives import Amount, Floats


class RankBlocks(NamedTuple):
    """What each pipeline rank has."""

    layers: tuple[int, ...]
    head: int  # the rank with the output layer
    loss: int  # the rank with the loss, which needs the logits


@lru_cache(maxsize=4096)
def blocks_of_ranks(shape: TransformerShape, pp: int, program: Program) -> RankBlocks:
    """Return the layers of each of `pp` pipeline ranks, and the ranks that have the output layer and the loss.

    nanotron assigns blocks in turn by their matmuls' parameters, the output layer among them, and goes on to the
    next rank once the sum passes that rank's share (nanotron, models/base.py, build_model). The others divide
    the layers evenly.
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


def pipeline_s(stage_s: Floats, micro_batches: Amount, virtual_stages: Amount) -> Floats:
    """Return the seconds of a step of 1F1B from those of one micro-batch on each stage, stages last.

    The slowest stage works without a break once it has its first micro-batch, and each micro-batch passes the
    others before and after: (m - 1) times the slowest and once all. Interleaving divides the others' part by the
    stages per rank (Narayanan et al., arXiv 2104.04473, section 2.2.2).
    """
    slowest = stage_s.max(axis=-1)
    others = stage_s.sum(axis=-1) - slowest
    seconds: Floats = micro_batches * slowest + others / virtual_stages
    return seconds
