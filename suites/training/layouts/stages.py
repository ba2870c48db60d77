"""Which layers a pipeline rank has, and how many of its forward passes await their backward pass.

Arrays have an entry per layout; `rank` is an array of pipeline ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.layout import Floats, Ints, Layouts, Training


class RankLayers(NamedTuple):
    """Layers of a pipeline rank, of one of its virtual stages or of all."""

    dense: Floats
    moe: Floats

    @property
    def all(self) -> Floats:
        """Return both."""
        return self.dense + self.moe


def first_layer_after(shape: TransformerShape, layouts: Layouts, training: Training, stage: Ints) -> Ints:
    """Return how many layers the pipeline's stages up to and with `stage` have; stages are counted from 0.

    Megatron-LM: equal parts; where the layers do not divide, embedding and output layer count as one each
    (--account-for-embedding-in-pipeline-split and its sister), if that divides. nanotron: a stage ends with
    the block whose cumulative cost passes its share; costs are the parameters of matmuls
    (nanotron/models/llama.py, get_block_compute_costs; models/base.py, build_model). torchtitan: embedding
    and output layer count as one layer each (torchtitan/distributed/pipeline.py, input_weight). Any: as
    `training.layers_of_stages` has them.
    """
    layers, stages = shape.num_hidden_layers, layouts.pp * layouts.virtual_stages
    if training.layers_of_stages:
        ends = np.cumsum(np.array(training.layers_of_stages, dtype=np.int64))
        return ends[np.minimum(stage, len(ends) - 1)]
    if training.program == "nanotron":
        mlp = shape.matrices_of_mlp * shape.hidden_size * shape.intermediate_size
        cost = shape.attention_matrix_parameters + mlp
        head = shape.vocab_size * shape.hidden_size
        passed = np.floor((layers * cost + head) * (stage + 1) / stages / cost + 1e-9) + 1
        return np.where(stage + 1 >= stages, layers, np.minimum(passed, layers)).astype(np.int64)
    slots = ((layers % stages != 0) & (stages > 1)).astype(np.int64)
    if training.program != "megatron":
        slots = (stages > 1).astype(np.int64)
    ends = (stage + 1) * (layers + 2 * slots) // stages - slots
    return np.where(stage + 1 >= stages, layers, np.clip(ends, 0, layers)).astype(np.int64)


def layers_of(
    shape: TransformerShape, layouts: Layouts, training: Training, rank: Ints, virtual_stage: int
) -> RankLayers:
    """Return the layers of one virtual stage of a rank; none where a layout has fewer."""
    moe_before = np.concatenate([[0], np.cumsum(shape.layers_are_moe)])
    stage = virtual_stage * layouts.pp + rank
    end = first_layer_after(shape, layouts, training, stage)
    start = np.where(stage > 0, first_layer_after(shape, layouts, training, stage - 1), 0)
    exists = layouts.virtual_stages > virtual_stage
    moe = (moe_before[end] - moe_before[start]) * exists
    return RankLayers(((end - start) * exists - moe).astype(float), moe.astype(float))


def all_layers_of(shape: TransformerShape, layouts: Layouts, training: Training, rank: Ints) -> RankLayers:
    """Return the layers of all virtual stages of a rank."""
    parts = [
        layers_of(shape, layouts, training, rank, virtual)
        for virtual in range(int(layouts.virtual_stages.max()))
    ]
    return RankLayers(sum(one.dense for one in parts), sum(one.moe for one in parts))  # type: ignore[arg-type]


def passes_in_flight(layouts: Layouts, rank: Ints) -> Ints:
    """Return how many forward passes of a rank's virtual stages await their backward pass at most.

    Megatron-LM, core/pipeline_parallel/schedules.py: p - rank of 1F1B, 2(p - rank - 1) + (v - 1)p + 1 of
    interleaved 1F1B; never more than there are.
    """
    warm_up = layouts.pp - rank - 1
    interleaved = 2 * warm_up + (layouts.virtual_stages - 1) * layouts.pp
    waiting = np.where(layouts.virtual_stages > 1, interleaved, warm_up) + 1
    return np.where(layouts.pp > 1, np.minimum(waiting, layouts.micro_batches * layouts.virtual_stages), 1)


def passes_of_stage(layouts: Layouts, rank: Ints, virtual_stage: int) -> Ints:
    """Return how many of these passes are of one virtual stage.

    A rank runs as many micro-batches as there are ranks through each of its stages in turn.
    """
    waiting, group = passes_in_flight(layouts, rank), layouts.pp
    turn = group * layouts.virtual_stages
    whole, rest = waiting // turn, waiting % turn
    return whole * group + np.clip(rest - virtual_stage * group, 0, group)
