"""The peak memory of every rank of a layout, added up from the tensors that its program keeps.

Nothing is fitted but the constants that say so. Arrays have an entry per layout; all bytes are of one GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.training.dry_run.simulated_cuda import CUBLAS_HANDLES, CUBLAS_WORKSPACE_B, Architecture
from suites.training.layouts.kept import (
    FP8,
    KeptOfLayer,
    kept_of_layer,
    parts_of_sequence,
    tokens_of_rank,
)
from suites.training.layouts.layout import RECOMPUTES, Floats, Ints, Layouts, Training
from suites.training.layouts.shape import TransformerShape
from suites.training.layouts.stages import (
    RankLayers,
    all_layers_of,
    layers_of,
    passes_of_stage,
)
from suites.training.layouts.states import (
    RankParameters,
    gathered_B,
    padded_vocabulary,
    parameters_of,
    states_B,
)

MiB = 2**20

ENGINE_WORKSPACE_B: dict[Architecture, int] = {"hopper": 32 * MiB + 1024, "blackwell": 32 * MiB + 1024}
"""Transformer Engine's workspace by architecture, 4 MiB for others: pytorch/cpp_extensions/gemm.py."""

GROUPED_STREAMS = 4
"""More such workspaces, for grouped matmuls: transformer_engine/pytorch/module/base.py, _num_cublas_streams."""

LOGIT_B = {"megatron": 6, "nanotron": 8, "composer": 6, "torchtitan": 12, "deepspeed": 12}
"""Bytes per logit where the loss is computed. Megatron-LM: bf16, and an fp32 copy, which the loss overwrites
(tensor_parallel/cross_entropy.py). nanotron: an fp32 copy and another that the loss makes
(parallel/tensor_parallel/functional.py). torch: log-softmax, and the gradients of it and of its result, fp32;
Composer's MPT in bf16."""

FUSED_LOGIT_B = 10
"""Of Megatron-LM's fused loss, which keeps a second fp32 copy (core/fusions/fused_cross_entropy.py)."""


class LayoutPeak(NamedTuple):
    """Bytes of the rank with the largest peak, by part, as arrays over layouts."""

    stage: Ints  # of the pipeline's ranks, from 0
    states: Floats  # parameters, gradients, optimizer states
    activations: Floats  # kept for the backward pass, and made by it
    logits: Floats  # what the loss has, on the last stage
    communication: Floats  # gathered parameters, buckets, what pipeline stages send
    workspaces: Floats

    @property
    def total_B(self) -> Floats:
        """Return all of them."""
        return self.states + self.activations + self.logits + self.communication + self.workspaces

    def where(self, chosen: np.ndarray, other: LayoutPeak) -> LayoutPeak:
        """Return the chosen entries of this one and the rest of another."""
        pairs = zip(self, other, strict=True)
        return LayoutPeak(*(np.where(chosen, own, others) for own, others in pairs))


def worst_peak(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture = "hopper"
) -> LayoutPeak:
    """Return the peak of the rank that takes the most, of each layout."""
    worst = peak_of_rank(shape, layouts, training, np.zeros_like(layouts.pp), architecture)
    for rank in range(1, int(layouts.pp.max())):
        exists = layouts.pp > rank
        of_rank = np.where(exists, rank, 0)
        one = peak_of_rank(shape, layouts, training, of_rank, architecture)
        worst = one.where(exists & (one.total_B > worst.total_B), worst)
    return worst


def peak_of_rank(
    shape: TransformerShape,
    layouts: Layouts,
    training: Training,
    rank: Ints,
    architecture: Architecture = "hopper",
) -> LayoutPeak:
    """Return the peak of a pipeline rank: where the loss is computed, or in a layer's backward pass."""
    layers = all_layers_of(shape, layouts, training, rank)
    parameters = parameters_of(shape, layouts, layers, rank)
    kept = kept_of_layer(shape, layouts, training, architecture)
    waiting = waiting_B(shape, layouts, training, rank, kept)
    made = np.where(layers.all > 0, kept.recomputed, 0.0)
    logits = np.where(rank == layouts.pp - 1, logits_B(shape, layouts, training, kept), 0.0)
    at_loss = logits > made
    late = late_gradients_B(shape, layouts, training, parameters, waiting, np.maximum(logits, made))
    return LayoutPeak(
        rank,
        states_B(layouts, training, parameters),
        waiting + np.where(at_loss, 0.0, made),
        np.where(at_loss, logits, 0.0),
        communication_B(shape, layouts, training, layers, parameters, kept) + late,
        workspaces_B(shape, layouts, training, architecture),
    )


def waiting_B(
    shape: TransformerShape, layouts: Layouts, training: Training, rank: Ints, kept: KeptOfLayer
) -> Floats:
    """Return what all forward passes keep that await their backward pass."""
    total: Floats = np.zeros_like(kept.input)
    for virtual in range(int(layouts.virtual_stages.max())):
        own = layers_of(shape, layouts, training, rank, virtual)
        passes = passes_of_stage(layouts, rank, virtual)
        total = total + passes * (own.dense * kept.dense + own.moe * kept.moe)
        if virtual == 0:  # the dropout after the embedding
            total = total + np.where(rank == 0, passes * kept.masks, 0.0)
    extra = shape.num_nextn_predict_layers * (kept.moe if shape.num_experts else kept.dense)
    return total + np.where(rank == layouts.pp - 1, extra, 0.0)


def logits_B(shape: TransformerShape, layouts: Layouts, training: Training, kept: KeptOfLayer) -> Floats:
    """Return what the last stage has where the loss is computed: the last norm, its result and the logits.

    With sequence parallelism, Megatron-LM also gathers the output layer's input into a buffer that stays.
    """
    tokens = tokens_of_rank(layouts, training)
    gathered = np.where(parts_of_sequence(layouts) > 1, 2 * tokens * shape.hidden_size, 0.0)
    each = LOGIT_B[training.program]
    if training.fused_loss and training.program == "megatron":
        each = FUSED_LOGIT_B
    of_logits = each * tokens * padded_vocabulary(shape, layouts) / layouts.tp
    if training.fused_loss and training.program != "megatron":
        of_logits = of_logits / LOSS_CHUNKS
    return 2 * kept.input + gathered + of_logits * (1 + shape.num_nextn_predict_layers)


LOSS_CHUNKS = 8
"""Chunks of a loss that makes logits in turn: the default of the technique `loss` here and of torchtitan."""


def late_gradients_B(
    shape: TransformerShape,
    layouts: Layouts,
    training: Training,
    parameters: RankParameters,
    waiting: Floats,
    made: Floats,
) -> Floats:
    """Return by how much the end of nanotron's backward pass exceeds its beginning.

    Gradients in bf16 exist until the full backward pass of a micro-batch is over, and are added to fp32 ones
    then (optim/gradient_accumulator.py, backward).
    """
    if training.program != "nanotron":
        return np.zeros_like(waiting)
    passes = np.maximum(1, np.minimum(layouts.pp, layouts.micro_batches))
    return np.maximum(0.0, 2 * parameters.all - waiting / passes - made)


def communication_B(
    shape: TransformerShape,
    layouts: Layouts,
    training: Training,
    layers: RankLayers,
    parameters: RankParameters,
    kept: KeptOfLayer,
) -> Floats:
    """Return gathered parameters, buckets of gradients, and what interleaved stages keep of what they send.

    Interleaved 1F1B leaves an input and an output of each virtual stage allocated between steps
    (core/pipeline_parallel/schedules.py, input_tensors and output_tensors). torch's DDP has buckets of all
    gradients (torch/nn/parallel/distributed.py, gradient_as_bucket_view), which nanotron uses.
    """
    of_stages = np.where(layouts.virtual_stages > 1, 2 * layouts.virtual_stages * kept.input, 0.0)
    buckets = np.zeros_like(kept.input)
    if training.program == "nanotron":
        buckets = np.where(layouts.dp * layouts.cp > 1, 2 * parameters.all, 0.0)
    return of_stages + buckets + gathered_B(shape, layouts, training, layers)


def workspaces_B(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture
) -> Floats:
    """Return the workspaces of cuBLAS and Transformer Engine."""
    size_B = CUBLAS_HANDLES * CUBLAS_WORKSPACE_B[architecture]
    if training.program == "megatron":
        engine_B = ENGINE_WORKSPACE_B.get(architecture, 4 * MiB)
        size_B += engine_B * (1 + (GROUPED_STREAMS if shape.num_experts else 0))
    return np.full_like(layouts.tp, size_B, dtype=float)


__all__ = ["FP8", "RECOMPUTES", "LayoutPeak", "peak_of_rank", "worst_peak"]
