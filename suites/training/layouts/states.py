"""What a pipeline rank has: its layers, their parameters, and the bytes that are kept for each.

These are weights, gradients and optimizer states; and how many forward passes await their backward pass.
Offloaded states are on the host: bytes of one rank, and what page-locked blocks take.
Arrays have an entry per layout; `rank` is an array of pipeline ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import (
    MUON_SAVES_B,
    OPTIMIZER_STATES_B,
    Floats,
    FrozenBase,
    Ints,
    Layouts,
    Training,
)


class RankLayers(NamedTuple):
    """Layers of a pipeline rank, of one of its virtual stages or of all; those with each part."""

    all: Floats
    attention: Floats
    linear: Floats  # a linear mixer in attention's place
    dense: Floats  # an MLP
    moe: Floats  # experts


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
    stage = virtual_stage * layouts.pp + rank
    end = first_layer_after(shape, layouts, training, stage)
    start = np.where(stage > 0, first_layer_after(shape, layouts, training, stage - 1), 0)
    exists = layouts.virtual_stages > virtual_stage
    moe = np.array(shape.layers_are_moe)
    kinds = (shape.layers_have_attention, shape.layers_are_linear, shape.layers_have_mlp & ~moe, moe)
    before = [np.concatenate([[0], np.cumsum(kind)]) for kind in kinds]
    counts = (((one[end] - one[start]) * exists).astype(float) for one in before)
    return RankLayers(((end - start) * exists).astype(float), *counts)


def all_layers_of(shape: TransformerShape, layouts: Layouts, training: Training, rank: Ints) -> RankLayers:
    """Return the layers of all virtual stages of a rank."""
    parts = [
        layers_of(shape, layouts, training, rank, virtual)
        for virtual in range(int(layouts.virtual_stages.max()))
    ]
    return RankLayers(*(np.sum(one, axis=0) for one in zip(*parts, strict=True)))


def passes_in_flight(layouts: Layouts, rank: Ints, group: int = 0) -> Ints:
    """Return how many forward passes of a rank's virtual stages await their backward pass at most.

    Megatron-LM, core/pipeline_parallel/schedules.py: p - rank of 1F1B, 2(p - rank - 1) + (v - 1)g + 1 of
    interleaved 1F1B with groups of g micro-batches, p by default; never more than there are.
    """
    warm_up = layouts.pp - rank - 1
    interleaved = 2 * warm_up + (layouts.virtual_stages - 1) * (group or layouts.pp)
    waiting = np.where(layouts.virtual_stages > 1, interleaved, warm_up) + 1
    return np.where(layouts.pp > 1, np.minimum(waiting, layouts.micro_batches * layouts.virtual_stages), 1)


def passes_of_stage(layouts: Layouts, rank: Ints, virtual_stage: int, group: int = 0) -> Ints:
    """Return how many of these passes are of one virtual stage.

    A rank runs a group of micro-batches, by default as many as there are ranks, through each of its stages
    in turn.
    """
    waiting = passes_in_flight(layouts, rank, group)
    each: int | Ints = group or layouts.pp
    turn = each * layouts.virtual_stages
    whole, rest = waiting // turn, waiting % turn
    return np.asarray(whole * each + np.clip(rest - virtual_stage * each, 0, each))


VOCABULARY_MULTIPLE = 128
"""The default of --make-vocab-size-divisible-by: what the vocabulary's part of each rank is a multiple of."""


class RankParameters(NamedTuple):
    """Parameters of one rank, before anything is sharded over data-parallel ranks."""

    shared: Floats  # all but the experts'
    experts: Floats
    outside: Floats  # of the shared ones, those outside of layers: embeddings, output layer, last norm

    @property
    def all(self) -> Floats:
        """Return both."""
        return self.shared + self.experts


class StateSizes(NamedTuple):
    """Bytes per parameter of a program."""

    weights: float
    gradients: float
    optimizer: float  # fp32 weights and moments


SIZES = {
    "megatron": StateSizes(2, 4, 12),
    "nanotron": StateSizes(2, 4, 12),
    "deepspeed": StateSizes(2, 2, 12),
    "torchtitan": StateSizes(4, 4, 8),
    "composer": StateSizes(4, 4, 8),
}
"""Megatron-LM: bf16 weights, fp32 gradients, fp32 weights and Adam's moments (core/distributed,
core/optimizer). nanotron: the same (optim/gradient_accumulator.py); its bf16 gradients are counted where they
exist. DeepSpeed: arXiv 1910.02054, section 3.1. FSDP keeps fp32 weights, which are also the optimizer's."""

FSDP = ("torchtitan", "composer")
"""Programs with torch's FSDP2 or FSDP1."""

FP8_WEIGHT_B = {"fp8": 2.0, "mxfp8": 2.0 + 2 / 32, "nvfp4": 1.0 + 2 / 16}
"""Bytes per weight of a layer in 8 bits (4 of nvfp4), by rows and transposed, with scales. They stay from
step to step: transformer_engine/pytorch/module/base.py, _fp8_workspaces, or the parameters themselves."""

UNTRANSPOSED = ("blackwell",)
"""Architectures that multiply fp8 weights in either order, so that no transposed ones are kept:
transformer_engine/pytorch/csrc/quantizer.cpp, Float8Quantizer::create_tensor."""

OPTIMIZER_B = {"adamw": 8.0, "adamw_8bit": 2.0625, "sgd_momentum": 4.0, "muon": 8.0}
"""Bytes of an optimizer's states per parameter; 8-bit Adam has an fp32 scale per block of 128 values,
twice. Muon's are Adam's for embeddings and the output layer."""


def narrow_weight_B(training: Training, architecture: str) -> float:
    """Return how many bytes Transformer Engine's format adds to a weight of a layer.

    With `training.fp8_parameters` the format replaces the bf16 weight; embeddings, output layer and norms
    stay in bf16 (core/fp8_utils.py, get_fp8_context; core/tensor_parallel/layers.py). NVFP4 has no such
    parameters here.
    """
    if training.program != "megatron" or training.precision not in FP8_WEIGHT_B:
        return 0.0
    format_B = FP8_WEIGHT_B[training.precision]
    if training.precision == "fp8" and architecture in UNTRANSPOSED:
        format_B /= 2
    replaces = training.fp8_parameters and training.precision != "nvfp4"
    return format_B - (SIZES["megatron"].weights if replaces else 0.0)


def sizes_of(training: Training) -> StateSizes:
    """Return the bytes per parameter on the device, with the optimizer's own states in place of Adam's."""
    sizes = SIZES[training.program]
    if training.states == "bf16":
        return half_states(training)
    if training.program == "megatron" and training.gradients == "bf16":
        sizes = sizes._replace(gradients=2)
    if training.program == "megatron" and training.master_remainders and training.precision == "bf16":
        sizes = sizes._replace(optimizer=sizes.optimizer - 2)
    if training.offload != "none" and training.program in FSDP:
        return StateSizes(0, 0, 0)
    if training.offload != "none":
        return sizes._replace(optimizer=0, weights=0 if training.offload == "parameters" else sizes.weights)
    return sizes._replace(optimizer=sizes.optimizer - OPTIMIZER_B["adamw"] + OPTIMIZER_B[training.optimizer])


def half_states(training: Training) -> StateSizes:
    """Return the bytes per parameter where FSDP's parameters are bf16, and so are gradients and moments.

    torch's optimizers make states of their parameters' type; 8-bit ones have their own.
    """
    if training.offload != "none" and training.program in FSDP:
        return StateSizes(0, 0, 0)
    own_B = OPTIMIZER_B[training.optimizer]
    moments_B = own_B if training.optimizer == "adamw_8bit" else own_B / 2
    return StateSizes(2, 2, 0 if training.offload != "none" else moments_B)


def padded_vocabulary(shape: TransformerShape, layouts: Layouts) -> Ints:
    """Return the vocabulary with the entries that make it divisible by the tensor-parallel ranks."""
    multiple = VOCABULARY_MULTIPLE * layouts.tp
    return -(-shape.vocab_size // multiple) * multiple


def parameters_of(
    shape: TransformerShape, layouts: Layouts, layers: RankLayers, rank: Ints
) -> RankParameters:
    """Return the parameters of one rank. With tied embeddings the last stage has a copy of the embedding.

    Matrices and what belongs to their columns are divided by the tensor-parallel ranks; norms, the router and
    latent attention's down projections are not.
    """
    layer, tp = layer_parameters(shape, layouts), layouts.tp
    shared = layers.attention * layer.attention + layers.linear * layer.linear
    shared = shared + layers.dense * layer.mlp + layers.moe * layer.shared
    experts = layers.moe * layer.experts
    last = rank == layouts.pp - 1
    predicted = shape.num_nextn_predict_layers
    if predicted:
        joined = 2 * shape.hidden_size**2 / tp + 3 * shape.norm_parameters
        shared = shared + np.where(last, predicted * (layer.moe + joined), 0.0)
        experts = experts + np.where(last, predicted * layer.experts, 0.0)
    outside = outside_of_layers(shape, layouts, rank)
    return RankParameters(shared + outside, experts, outside)


def outside_of_layers(shape: TransformerShape, layouts: Layouts, rank: Ints) -> Floats:
    """Return the parameters of a rank's embeddings, output layer and norms that belong to no layer."""
    last, first = rank == layouts.pp - 1, rank == 0
    vocabulary = padded_vocabulary(shape, layouts) * shape.hidden_size / layouts.tp
    positions = shape.learned_positions * shape.hidden_size
    before = shape.norm_parameters * max(shape.outer_norms - 1, 0)
    total = np.where(first, vocabulary + positions + before, 0.0)
    tied = first & bool(shape.tie_word_embeddings)
    head_bias = padded_vocabulary(shape, layouts) / layouts.tp if shape.head_bias else 0
    after = shape.norm_parameters * min(shape.outer_norms, 1) + head_bias
    total = total + np.where(last, after + np.where(tied, 0.0, vocabulary), 0.0)
    if shape.num_nextn_predict_layers and not shape.tie_word_embeddings:  # its own copy of the embedding
        total = total + np.where(last & ~first, vocabulary, 0.0)
    return np.asarray(total, dtype=float)


class LayerParameters(NamedTuple):
    """Parameters of the parts of a layer on one rank, each with its norms."""

    attention: Floats
    linear: Floats  # the mixer in attention's place
    mlp: Floats
    shared: Floats  # of a mixture of experts, all but the experts
    experts: Floats

    @property
    def dense(self) -> Floats:
        """Return those of a layer with attention and an MLP."""
        return self.attention + self.mlp

    @property
    def moe(self) -> Floats:
        """Return those of a layer with attention and experts, without these."""
        return self.attention + self.shared


def layer_parameters(shape: TransformerShape, layouts: Layouts) -> LayerParameters:
    """Return the parameters of one layer's parts on one rank. A mixer's vectors are divided, too."""
    tp = layouts.tp
    norms = shape.norms_per_part * shape.norm_parameters
    latent = shape.hidden_size * (shape.q_lora_rank + shape.kv_lora_rank + shape.qk_rope_head_dim)
    latent = latent if shape.kv_lora_rank else 0
    columns = 0 if shape.kv_lora_rank else shape.qkv_bias_parameters
    columns += shape.num_attention_heads if shape.attention_sinks else 0
    whole = latent + shape.attention_vector_parameters - columns
    attention = norms + whole + (shape.attention_matrix_parameters - latent + columns) / tp

    def mlp(width: int, ranks: Ints, bias: bool = shape.mlp_bias, inputs: int | None = None) -> Floats:
        own = (inputs or shape.hidden_size) if bias and width else 0
        return np.asarray((shape.mlp_parameters(width, bias, inputs) - own) / ranks + own, dtype=float)

    gate = shape.hidden_size if shape.shared_gate else 0
    shared = norms + shape.router_parameters + gate + mlp(shape.shared_intermediate_size, tp)
    each = mlp(shape.moe_intermediate_size, layouts.etp, shape.expert_bias, shape.expert_input_size)
    return LayerParameters(
        attention,
        norms + shape.mixer_parameters / tp,
        norms + mlp(shape.intermediate_size, tp),
        shared + shape.latent_parameters,
        shape.num_experts / layouts.ep * each,
    )


def expert_copies(layouts: Layouts) -> Floats:
    """Return how many ranks have the same experts."""
    return np.maximum(layouts.dp * layouts.cp * layouts.tp / (layouts.ep * layouts.etp), 1.0)


class StateBytes(NamedTuple):
    """Bytes of one rank."""

    weights: Floats
    gradients: Floats
    optimizer: Floats


def states_B(
    layouts: Layouts,
    training: Training,
    parameters: RankParameters,
    architecture: str = "hopper",
) -> StateBytes:
    """Return the bytes of weights, gradients and optimizer states on one rank, as ZeRO's stage shards them.

    Experts are sharded over the ranks that have the same ones. FSDP shards the fp32 weights at stage 2, too,
    and keeps gathered copies of them (`account.gathered_B`).
    """
    sizes, stage = sizes_of(training), 2 if training.program in FSDP else 3
    if training.replicated_experts:
        return replicated_experts_B(layouts, sizes, parameters, stage)
    in_layers = parameters._replace(shared=parameters.shared - parameters.outside)
    narrow_B = narrow_weight_B(training, architecture) * sharded(layouts, in_layers, stage)
    saved_B = MUON_SAVES_B if training.optimizer == "muon" and sizes.optimizer else 0.0
    if training.states == "bf16":
        saved_B /= 2
    if training.frozen is not None:
        return frozen_B(layouts, training.frozen, sizes, in_layers, parameters, stage)
    return StateBytes(
        sizes.weights * sharded(layouts, parameters, stage) + (narrow_B if sizes.weights else 0.0),
        sizes.gradients * sharded(layouts, parameters, 2),
        sizes.optimizer * sharded(layouts, parameters, 1) - saved_B * sharded(layouts, in_layers, 1),
    )


def replicated_experts_B(
    layouts: Layouts, sizes: StateSizes, parameters: RankParameters, stage: int
) -> StateBytes:
    """Return the bytes of states where ZeRO shards all but the experts."""
    shared = parameters._replace(experts=np.zeros_like(parameters.experts))
    stages = (stage, 2, 1)
    return StateBytes(
        *(
            each_B * (sharded(layouts, shared, at) + parameters.experts)
            for each_B, at in zip(sizes, stages, strict=True)
        )
    )


def frozen_B(
    layouts: Layouts,
    base: FrozenBase,
    sizes: StateSizes,
    in_layers: RankParameters,
    parameters: RankParameters,
    stage: int,
) -> StateBytes:
    """Return the bytes of a frozen model and its adapters, which are spread as the layers are.

    Embeddings, output layer and norms outside of layers are frozen in bf16, also where copies are trained.
    """
    outside = sharded(layouts, parameters, stage) - sharded(layouts, in_layers, stage)
    trained = RankParameters(*(base.adapters * one for one in in_layers))
    if base.ends:
        trained = trained._replace(shared=trained.shared + parameters.outside)
    weights = base.weight_B * sharded(layouts, in_layers, stage) + base.whole_B * in_layers.all
    weights = weights + SIZES["megatron"].weights * outside
    return StateBytes(
        np.where(sizes.weights > 0, weights + sizes.weights * sharded(layouts, trained, stage), 0.0),
        sizes.gradients * sharded(layouts, trained, 2),
        sizes.optimizer * sharded(layouts, trained, 1),
    )


def sharded(layouts: Layouts, parameters: RankParameters, stage: int) -> Floats:
    """Return the parameters of which a rank has something that ZeRO shards from this stage on.

    Groups of ranks that each shard a full copy divide those with the same experts, too (Megatron-LM's
    core/parallel_state.py, intra_partial_expert_data_parallel_size).
    """
    shards = layouts.shard_size.astype(float)
    instances = np.maximum(layouts.dp * layouts.cp / shards, 1.0)
    copies = np.maximum(expert_copies(layouts) / instances, 1.0)
    here = parameters.shared / shards + parameters.experts / copies
    return np.where(layouts.zero >= stage, here, parameters.all)


class UnitParameters(NamedTuple):
    """Parameters that FSDP gathers at once."""

    layer: Floats  # the largest layer of the rank
    root: Floats  # embedding and output layer, where the rank has them
    head: Floats  # the output layer alone


def units_of(
    shape: TransformerShape,
    layouts: Layouts,
    layers: RankLayers,
    rank: Ints,
    replicated_experts: bool = False,
) -> UnitParameters:
    """Return the units of one rank; experts that ranks have whole are not gathered."""
    layer = layer_parameters(shape, layouts)
    attention = np.where(layers.attention > 0, layer.attention, 0.0)
    mixer = np.maximum(attention, np.where(layers.linear > 0, layer.linear, 0.0))
    mlp = np.where(layers.dense > 0, layer.mlp, 0.0)
    gathered_experts = 0.0 if replicated_experts else layer.experts
    mlp = np.maximum(mlp, np.where(layers.moe > 0, layer.shared + gathered_experts, 0.0))
    vocabulary = shape.vocab_size * shape.hidden_size / layouts.tp
    first, last = rank == 0, rank == layouts.pp - 1
    head = np.where(last, vocabulary, 0.0)
    tied = first & last & bool(shape.tie_word_embeddings)
    largest = np.maximum(mixer, mlp) if shape.mlp_layers else mixer + mlp
    return UnitParameters(largest, head + np.where(first & ~tied, vocabulary, 0.0), head)


class HostBytes(NamedTuple):
    """Bytes of one rank in host memory, as arrays over layouts."""

    pageable: Floats
    pinned: Floats  # as they are asked for
    reserved: Floats  # all, with pinned blocks as torch reserves them

    @property
    def asked(self) -> Floats:
        """Return both as they are asked for."""
        return self.pageable + self.pinned


def host_B(
    shape: TransformerShape, layouts: Layouts, training: Training, layers: RankLayers, rank: Ints
) -> HostBytes:
    """Return what one rank has on its host.

    FSDP has fp32 weights and gradients (4 and 4 per parameter of a rank's part), page-locked, each tensor a
    block, and the optimizer's states: torch/distributed/fsdp/_fully_shard/_fsdp_param.py and
    _fsdp_collectives.py, foreach_reduce; of FSDP1 torch/distributed/fsdp/_flat_param.py,
    init_flat_param_attributes.
    """
    part = sharded(layouts, parameters_of(shape, layouts, layers, rank), 1)
    nothing = np.zeros_like(part)
    if training.offload == "none":
        return HostBytes(nothing, nothing, nothing)
    if training.program != "deepspeed":
        tensors = list(shards(shape, layouts, layers, rank))
        reserved = sum((2 * count * power_of_two(4 * size) for size, count in tensors), nothing)
        states_B = OPTIMIZER_STATES_B[training.optimizer] * part
        if training.optimizer == "muon":
            every = parameters_of(shape, layouts, layers, rank)
            in_layers = every._replace(shared=every.shared - every.outside)
            states_B = states_B - MUON_SAVES_B * sharded(layouts, in_layers, 1)
        return HostBytes(states_B, 8 * part, states_B + reserved)
    return deepspeed_host_B(part, layouts.zero, training.offload == "parameters")


SUB_GROUP = 1e9
"""Elements of a sub-group of ZeRO-3 by default: deepspeed/runtime/zero/config.py, sub_group_size."""


def deepspeed_host_B(part: Floats, stage: Ints, with_parameters: bool) -> HostBytes:
    """Return what DeepSpeed has on the host, with pin_memory, of so many parameters of one rank.

    Stages 1 and 2: fp32 weights and gradients (4 and 4) and a bf16 copy (2), each one page-locked block
    (runtime/zero/stage_1_and_2.py, param_buffer_of_bit16_for_cpu_offload_groups). Stage 3: fp32 weights (4),
    pageable, and page-locked bf16 gradients in one block (2, grad_partitions_flat_buffer) and fp32 ones by
    sub-groups (4, initialize_optimizer_states); bf16 parameters (2, one block) where they are there, too
    (runtime/zero/stage3.py). Both have Adam's moments (8), pageable. As of 0.19.8.
    """
    third = stage >= 3
    blocks = [np.where(third, 0.0, 4 * part), 2 * part]
    blocks += [2 * part * with_parameters]
    whole = np.where(third, np.floor(part / SUB_GROUP), 0.0)
    rest = part - SUB_GROUP * whole
    pinned = sum(blocks, 4 * part)
    of_gradients = whole * power_of_two(np.full_like(part, 4 * SUB_GROUP)) + power_of_two(4 * rest)
    reserved = sum(map(power_of_two, blocks), of_gradients)
    pageable = 8 * part + np.where(third, 4 * part, 0.0)
    return HostBytes(pageable, pinned, pageable + reserved)


def power_of_two(size_B: Floats) -> Floats:
    """Return sizes rounded up to powers of two, as torch reserves page-locked blocks.

    aten/src/ATen/core/CachingHostAllocator.h, allocate (no threshold by default); github.com/pytorch/pytorch,
    issue 95823.
    """
    return np.where(size_B > 0, np.exp2(np.ceil(np.log2(np.maximum(size_B, 1.0)))), 0.0)


def shards(
    shape: TransformerShape, layouts: Layouts, layers: RankLayers, rank: Ints
) -> Iterator[tuple[Floats, Floats]]:
    """Yield a rank's shards of the model's matrices and norms: elements of one, and how many there are.

    Experts of a layer lie in one tensor per matrix. Biases are left out.
    """
    first, last = (rank == 0).astype(float), (rank == layouts.pp - 1).astype(float)
    vocabulary = shape.vocab_size * shape.hidden_size / layouts.tp
    untied = 1.0 - first * bool(shape.tie_word_embeddings)
    whole = [(vocabulary, first), (vocabulary, last * untied)]
    whole += [(size / layouts.tp, layers.attention) for size in shape.attention_matrices]
    if shape.mixer:
        sizes = shape.hidden_size * shape.mixer.projected, shape.hidden_size * shape.mixer.inner
        whole += [(size / layouts.tp, layers.linear) for size in sizes]
    whole += [(np.full_like(first, shape.hidden_size), shape.norms_per_layer * layers.all + last)]
    each = shape.hidden_size / layouts.tp
    whole += [(each * shape.intermediate_size, shape.matrices_of_mlp * layers.dense)]
    if shape.num_experts:
        whole += [(each * shape.shared_intermediate_size, shape.matrices_of_mlp * layers.moe)]
        whole += [(np.full_like(first, shape.router_parameters), layers.moe)]
    for size, count in whole:
        yield sharded(layouts, RankParameters(size, np.zeros_like(size), np.zeros_like(size)), 1), count
    if shape.num_experts:
        every = shape.expert_input_size * shape.moe_intermediate_size * shape.num_experts
        size = every / layouts.ep / layouts.etp
        experts = RankParameters(np.zeros_like(size), size, np.zeros_like(size))
        yield sharded(layouts, experts, 1), shape.matrices_of_mlp * layers.moe
