"""The peak memory of every rank of a layout, added up from the tensors that its program keeps.

Nothing is fitted but the constants that say so. Arrays have an entry per layout; all bytes are of one GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from harness.question import DEEPSPEED_BUCKET
from suites.training.layouts.dispatch import gathered_tokens_B
from suites.training.layouts.kept import KeptOfLayer, kept_of_layer, largest_layer
from suites.training.layouts.layout import (
    RECOMPUTES,
    Floats,
    FrozenBase,
    Ints,
    Layouts,
    Training,
    parts_of_sequence,
    tokens_of_rank,
)
from suites.training.layouts.room import workspaces_B
from suites.training.layouts.states import (
    FSDP,
    RankParameters,
    UnitParameters,
    all_layers_of,
    layers_of,
    padded_vocabulary,
    parameters_of,
    passes_of_stage,
    sharded,
    states_B,
    units_of,
)
from suites.training.layouts.transformers_step import TransformersStep
from suites.training.workload import Architecture

LOGIT_B = {"megatron": 6, "nanotron": 8, "composer": 6, "torchtitan": 12, "deepspeed": 12}
"""Bytes per logit where the loss is computed. Megatron-LM: bf16, and an fp32 copy, which the loss overwrites
(tensor_parallel/cross_entropy.py). nanotron: an fp32 copy and another that the loss makes
(parallel/tensor_parallel/functional.py). torch: log-softmax, and the gradients of it and of its result, fp32;
Composer's MPT in bf16."""

SHARDED_LOGIT_B = 16
"""Of torch's loss over a vocabulary that tensor-parallel ranks share, which also subtracts the ranks'
maximum."""

COMPILED_LOGIT_B = 4
"""Of torch's loss in one graph, without tensor parallelism: bf16 logits and their gradient. What is fp32 in
between is computed again (torchtitan v0.2.2, components/loss.py; compile.components has the loss by
default)."""

FUSED_LOGIT_B = 10
"""Of Megatron-LM's fused loss, which keeps a second fp32 copy (core/fusions/fused_cross_entropy.py)."""


class LayoutPeak(NamedTuple):
    """Bytes of the rank with the largest peak, by part, as arrays over layouts."""

    stage: Ints  # of the pipeline's ranks, from 0
    parameters: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats  # kept for the backward pass, and made by it
    logits: Floats  # what the loss has, on the last stage
    communication: Floats  # gathered parameters, buckets, what pipeline stages send
    workspaces: Floats

    @property
    def states(self) -> Floats:
        """Return parameters, optimizer states and gradients."""
        return self.parameters + self.optimizer + self.gradients

    @property
    def total_B(self) -> Floats:
        """Return all of them."""
        return self.states + self.activations + self.logits + self.communication + self.workspaces

    def only(self, chosen: Ints) -> LayoutPeak:
        """Return the chosen entries."""
        stage, *parts = self
        return LayoutPeak(stage[chosen], *(part[chosen] for part in parts))


def worst_peak(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture = "hopper"
) -> LayoutPeak:
    """Return the peak of the rank that takes the most, of each layout.

    Raises `Unavailable` for transformers' model code (`training.model_code`) where that is not modelled.
    """
    if training.model_code:
        return peak_of_transformers(shape, layouts, training, architecture)
    at = np.repeat(np.arange(len(layouts.pp)), layouts.pp)  # the layout of each rank
    rank = np.arange(len(at)) - np.repeat(np.cumsum(layouts.pp) - layouts.pp, layouts.pp)
    peak = peak_of_rank(shape, layouts.only(at), training, rank, architecture)
    order = np.lexsort((rank, -peak.total_B, at))
    worst: Ints = order[np.searchsorted(at[order], np.arange(len(layouts.pp)))]
    return peak.only(worst)


def peak_of_transformers(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture
) -> LayoutPeak:
    """Return the peak of a step of transformers' code.

    Its activations include gathered parameters and gradients, its parameters the optimizer's states.
    """
    steps = [
        TransformersStep(shape, layouts.row(index), training, architecture)
        for index in range(len(layouts.dp))
    ]
    rows = [(one.states_B, one.buckets_B, one.workspaces_B, one.peak_B()) for one in steps]
    states, buckets, workspaces, total = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    rest = total - states - buckets - workspaces
    none = np.zeros_like(rest)
    return LayoutPeak(np.zeros_like(layouts.pp), states, none, none, rest, none, buckets, workspaces)


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
    states = states_B(layouts, training, parameters, architecture)
    kept = kept_of_layer(shape, layouts, training, architecture)
    units = units_of(shape, layouts, layers, rank, training.replicated_experts)
    waiting = waiting_B(shape, layouts, training, rank, kept)
    waiting = waiting + autocast_copies_B(layouts, training, units, parameters)
    waiting = waiting + np.where(rank == layouts.pp - 1, deferred_B(shape, layouts, training, kept), 0.0)
    made = np.where(layers.all > 0, kept.recomputed, 0.0)
    buffer = np.where(layers.moe > 0, gathered_tokens_B(shape, layouts, training), 0.0)
    logits = np.where(rank == layouts.pp - 1, logits_B(shape, layouts, training, kept, buffer), 0.0)
    gathered = gathered_B(layouts, training, units, parameters)
    at_loss = logits + gathered.at_loss > made + gathered.in_backward
    at_begin = waiting + np.where(at_loss, logits + gathered.at_loss, made + gathered.in_backward)
    late = late_gradients_B(layouts, training, parameters, waiting, np.maximum(logits, made))
    existing = gradients_exist(layouts, training)
    at_end = states.gradients * (1 - existing) + made + gathered.in_backward
    late = late + np.where(existing < 1, np.maximum(at_end - at_begin, 0.0), 0.0)
    late = late + np.maximum(widened_gradients_B(layouts, training, parameters) - at_begin, 0.0)
    return LayoutPeak(
        rank,
        states.weights,
        states.gradients * existing,
        states.optimizer,
        waiting + np.where(at_loss, 0.0, made),
        np.where(at_loss, logits, 0.0),
        communication_B(layouts, training, parameters, kept, units.head)
        + buffer
        + late
        + np.where(at_loss, gathered.at_loss, gathered.in_backward),
        workspaces_B(shape, layouts, training, architecture),
    )


def gradients_exist(layouts: Layouts, training: Training) -> Floats:
    """Return 1 where a rank has its gradients when a backward pass begins, else 0.

    FSDP's are set to None by each update, so that only further micro-batches find some, and in a pipeline
    none does (`gathered_B`). All exist when the pass ends, with what its last layer makes.
    """
    transient = training.program in FSDP
    none = (layouts.micro_batches == 1) | in_stages(layouts, training)
    return np.where(transient & none, 0.0, 1.0)


def in_stages(layouts: Layouts, training: Training) -> np.ndarray:
    """Return where FSDP2 is in torchtitan's pipeline."""
    return np.asarray((layouts.pp > 1) & (layouts.zero >= 2) & (training.program == "torchtitan"))


class GatheredBytes(NamedTuple):
    """What ZeRO-3 has of parameters that are gathered and of gradients that are not yet reduced."""

    at_loss: Floats
    in_backward: Floats


def gathered_B(
    layouts: Layouts, training: Training, units: UnitParameters, parameters: RankParameters
) -> GatheredBytes:
    """Return what FSDP2 gathers in bf16, and the gradients that it has not reduced.

    The root's parameters and the last layer's stay gathered where the loss is computed. A backward pass has
    two layers gathered, the output layer's gradient, and the fp32 buffer in which a layer's gradients are
    reduced (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py). With stage 2
    (reshard_after_forward=False) and in torchtitan's pipelines all stay gathered until the backward pass. A
    pipeline reduces after the last one: gradients of all parameters exist in fp32 until then, and a layer's
    in bf16 (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).
    """
    shards = (layouts.zero >= 3) | ((layouts.zero == 2) & (training.program in FSDP))
    staged = in_stages(layouts, training)
    stay = (layouts.zero == 2) | staged
    every = parameters.shared if training.replicated_experts else parameters.all
    at_loss = np.where(stay, every, units.root + units.layer)
    in_backward = np.where(stay, every, units.root + 2 * units.layer) + units.head
    late = np.where(staged, 4 * every, 0.0)
    reduced_B = (
        2.0 if training.states == "bf16" else 4.0
    )  # by default gradients are reduced as parameters are
    of_layer = np.where(staged, 2.0, reduced_B) * units.layer
    if training.frozen is not None:
        return gathered_of_frozen_B(training.frozen, shards, stay, units, parameters)
    return GatheredBytes(
        np.where(shards, 2 * at_loss + late, 0.0),
        np.where(shards, 2 * in_backward + of_layer + late, 0.0),
    )


def gathered_of_frozen_B(
    base: FrozenBase, shards: np.ndarray, stay: np.ndarray, units: UnitParameters, parameters: RankParameters
) -> GatheredBytes:
    """Return what is gathered of a frozen base in its own bytes, and a layer's adapters' gradients in fp32.

    A quantized base is gathered as it is stored, embedding and output layer in bf16.
    """
    in_layers = parameters.all - parameters.outside
    whole = base.weight_B * in_layers + 2 * parameters.outside
    at_loss = np.where(stay, whole, 2 * units.root + base.weight_B * units.layer)
    in_backward = np.where(stay, whole, 2 * units.root + 2 * base.weight_B * units.layer)
    adapters = 4 * base.adapters * units.layer
    return GatheredBytes(np.where(shards, at_loss, 0.0), np.where(shards, in_backward + adapters, 0.0))


def autocast_copies_B(
    layouts: Layouts, training: Training, units: UnitParameters, parameters: RankParameters
) -> Floats:
    """Return the bf16 copies of weights that autocast makes where nothing is sharded, as with torch's DDP.

    Autograd keeps them for the backward pass; recomputed layers make theirs again.
    """
    if training.program not in FSDP or training.precision == "fp32":
        return np.zeros_like(units.head)
    in_layers = np.where(
        layouts.recompute == RECOMPUTES.index("full"), 0.0, parameters.all - parameters.outside
    )
    return np.where(layouts.zero < 2, 2 * (in_layers + units.head), 0.0)


HELD_LAYERS = 2
"""Of layers whose activations go to the host: one leaves or comes while the next is computed."""


def waiting_B(
    shape: TransformerShape, layouts: Layouts, training: Training, rank: Ints, kept: KeptOfLayer
) -> Floats:
    """Return what all forward passes keep that await their backward pass."""
    total: Floats = np.zeros_like(kept.input)
    for virtual in range(int(layouts.virtual_stages.max())):
        own = layers_of(shape, layouts, training, rank, virtual)
        passes = passes_of_stage(layouts, rank, virtual, training.micro_batch_group)
        of_mixers = own.attention * kept.attention + own.linear * kept.linear
        total = total + passes * (of_mixers + own.dense * kept.mlp + own.moe * kept.experts)
        if virtual == 0:  # the dropout after the embedding
            total = total + np.where(rank == 0, passes * kept.masks, 0.0)
    if training.activations_on_host:
        total = np.minimum(total, HELD_LAYERS * largest_layer(shape, kept))
    extra = shape.num_nextn_predict_layers * (kept.moe if shape.num_experts else kept.dense)
    return total + np.where(rank == layouts.pp - 1, extra, 0.0)


def logits_B(
    shape: TransformerShape, layouts: Layouts, training: Training, kept: KeptOfLayer, buffer: Floats
) -> Floats:
    """Return what the last stage has where the loss is computed: the last norm, its result and the logits.

    With sequence parallelism, Megatron-LM also gathers the output layer's input into a buffer that stays;
    `buffer`: what it has of that already.
    """
    tokens = tokens_of_rank(layouts, training)
    gathered = np.where(parts_of_sequence(layouts) > 1, 2 * tokens * shape.hidden_size, 0.0)
    gathered = np.maximum(gathered - buffer, 0.0)
    each: float | Floats = LOGIT_B[training.program]
    if training.fused_loss and training.program == "megatron":
        each = FUSED_LOGIT_B
    if training.program == "torchtitan":
        whole = COMPILED_LOGIT_B if training.compiled_loss else each
        each = np.where(layouts.tp > 1, SHARDED_LOGIT_B, whole)
    of_logits = each * tokens * padded_vocabulary(shape, layouts) / layouts.tp
    if training.fused_loss and training.program != "megatron":
        by_width = -(-shape.vocab_size // shape.hidden_size) if training.linear_loss else 1
        of_logits = of_logits / max(LOSS_CHUNKS, by_width)
    predicted = shape.num_nextn_predict_layers
    of_more = predicted * (of_logits * (1 - 2 / each) + JOINED_INPUTS * kept.input)  # bf16 ones are gone then
    return 2 * kept.input + gathered + of_logits + of_more


def deferred_B(shape: TransformerShape, layouts: Layouts, training: Training, kept: KeptOfLayer) -> Floats:
    """Return what waits of earlier micro-batches where the output layer's gradient is calculated at the end.

    Its input and the bf16 gradient of its result (core/tensor_parallel/layers.py, grad_output_buffer and
    embedding_activation_buffer); of so many micro-batches at most, and in a pipeline alone.
    """
    most = training.deferred_head_gradients
    if most is None:
        return np.zeros_like(kept.input)
    earlier = layouts.micro_batches - 1
    waiting = np.where(layouts.pp > 1, np.minimum(earlier, most) if most else earlier, 0)
    vocabulary = padded_vocabulary(shape, layouts) / layouts.tp
    return np.asarray(
        waiting * (kept.input + 2 * tokens_of_rank(layouts, training) * vocabulary), dtype=float
    )


JOINED_INPUTS = 8
"""Of multi-token prediction, in units of a layer's input: inputs and results of two norms, the two joined,
and their projection (core/transformer/multi_token_prediction.py)."""

LOSS_CHUNKS = 8
"""Chunks of a loss that makes logits in turn: the default of the technique `loss` here and of torchtitan.
Liger's has as many as the vocabulary is wider than the hidden size (ops/fused_linear_cross_entropy.py,
inc_factor)."""


def late_gradients_B(
    layouts: Layouts, training: Training, parameters: RankParameters, waiting: Floats, made: Floats
) -> Floats:
    """Return by how much the end of nanotron's backward pass exceeds its beginning.

    Gradients in bf16 exist until the full backward pass of a micro-batch is over, and are added to fp32 ones
    then (optim/gradient_accumulator.py, backward).
    """
    if training.program != "nanotron":
        return np.zeros_like(waiting)
    passes = np.maximum(1, np.minimum(layouts.pp, layouts.micro_batches))
    return np.maximum(0.0, 2 * parameters.all - waiting / passes - made)


def widened_gradients_B(layouts: Layouts, training: Training, parameters: RankParameters) -> Floats:
    """Return the fp32 copies of 16-bit gradients from which Megatron-LM's optimizer updates.

    They are made when no activations are left (core/optimizer/optimizer.py, distrib_optimizer.py,
    _copy_model_grads_to_main_grads); the precision-aware optimizer reads the gradients themselves.
    """
    own = training.program == "megatron" and training.gradients == "bf16" and training.offload == "none"
    if not own or training.master_remainders or training.frozen is not None:
        return np.zeros_like(parameters.all)
    return 4 * sharded(layouts, parameters, 1)


def communication_B(
    layouts: Layouts, training: Training, parameters: RankParameters, kept: KeptOfLayer, head: Floats
) -> Floats:
    """Return buckets of gradients, and what pipeline stages keep of what they receive.

    In Megatron-Core the gradient of each virtual stage's last input stays until its next micro-batch
    (core/transformer/transformer_block.py, input_tensor; core/pipeline_parallel/schedules.py, retain_grad).
    torch's DDP has buckets of all
    gradients (torch/nn/parallel/distributed.py, gradient_as_bucket_view), which nanotron uses. DeepSpeed has
    a bucket (`Training.bucket_of`) and what is reduced of it; the gradient of an output layer (`head`
    parameters) that exceeds the bucket stays a tensor of its own (runtime/zero/stage3.py,
    __add_grad_to_ipg_bucket), of which as much is counted as the default bucket has.
    """
    of_stages = np.where(layouts.pp > 1, layouts.virtual_stages * kept.input, 0.0)
    buckets = np.zeros_like(kept.input)
    alone = layouts.dp * layouts.cp == 1
    if training.program == "nanotron":
        buckets = np.where(alone, 0.0, 2 * parameters.all)
    if training.program in ("torchtitan", "composer"):
        buckets = np.where((layouts.zero == 0) & ~alone, 4 * parameters.all, 0.0)
    if training.program == "deepspeed":
        reduced = np.minimum(parameters.all, training.bucket)
        trains_head = training.frozen is None or training.frozen.ends
        outside = np.minimum(head, DEEPSPEED_BUCKET) if trains_head else np.zeros_like(head)
        buckets = np.where(
            alone, 0.0, 2 * training.bucket_of(parameters.all) + 2 * np.maximum(reduced, outside)
        )
    return of_stages + buckets
