"""Bytes that autograd keeps of one layer and one micro-batch on one rank, under each recompute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.layout import (
    RECOMPUTES,
    Floats,
    Layouts,
    Training,
    parts_of_sequence,
    tokens_of_rank,
)
from suites.training.layouts.parts import (
    attention_kept,
    backward_of_mlp,
    backward_of_scores,
    experts_kept,
    gathered_kept,
    matmul_input_B,
    matmuls_kept,
    mlp_kept,
    norms_kept,
    reorders,
    scores_kept,
    tokens_of_experts,
)
from suites.training.workload import Architecture


class KeptOfLayer(NamedTuple):
    """Bytes of one layer and one micro-batch on one rank, as arrays over layouts."""

    dense: Floats  # of a layer with a dense MLP
    moe: Floats  # of a layer with experts
    input: Floats  # of the layer's input alone
    recomputed: Floats  # what exists in one layer's backward pass besides what is kept
    masks: Floats  # of the dropout after the embedding


def kept_of_layer(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture = "hopper"
) -> KeptOfLayer:
    """Return what one layer keeps until its backward pass, and what that pass makes."""
    tokens = tokens_of_rank(layouts, training)
    spread = parts_of_sequence(layouts)
    attention = attention_kept(shape, layouts, training, architecture)
    masks = 2 * shape.hidden_size / spread if shape.dropout else np.zeros_like(tokens)
    norms = norms_kept(shape, layouts, training)
    each = shape.norms_per_layer
    common = attention + masks + norms
    dense = common + mlp_kept(shape, training, shape.intermediate_size) / layouts.tp
    dense = dense + gathered_kept(shape, layouts, training, each)
    moe = common + experts_kept(shape, layouts, training) + gathered_kept(shape, layouts, training, each - 1)
    scores = scores_kept(shape, layouts, training)
    whole = KeptOfLayer(dense + scores, moe + scores, 2 * shape.hidden_size / spread, dense, masks / 2)
    chosen = by_recompute(shape, layouts, training, whole, architecture)
    return KeptOfLayer(*(np.asarray(one * tokens, dtype=float) for one in chosen))


def by_recompute(
    shape: TransformerShape,
    layouts: Layouts,
    training: Training,
    whole: KeptOfLayer,
    architecture: Architecture,
) -> KeptOfLayer:
    """Return what is left to keep under each recompute, and what a layer's backward pass makes."""
    has_moe = shape.num_experts > 0
    largest = whole.moe if has_moe else whole.dense
    freed = mlp_kept(shape, training, shape.intermediate_size) / layouts.tp
    freed = np.minimum(freed, experts_kept(shape, layouts, training)) if has_moe else freed
    of_scores = backward_of_scores(shape, layouts, training) - freed  # the MLP's backward pass is over then
    made = whole.input + np.maximum(backward_of_mlp(shape, layouts, training), of_scores)
    full = layouts.recompute == RECOMPUTES.index("full")
    selective = layouts.recompute == RECOMPUTES.index("selective")
    if training.program == "megatron":
        dropped = dropped_by_modules(shape, layouts, training, architecture)
        dense = whole.dense - dropped.attention - dropped.dense
        moe = whole.moe - dropped.attention - dropped.moe
        again = np.maximum(dropped.attention, dropped.moe if has_moe else dropped.dense)
    else:
        dense = moe = matmuls_kept(shape, layouts, training)
        again = largest - dense
    return KeptOfLayer(
        np.select([full, selective], [whole.input, dense], whole.dense),
        np.select([full, selective], [whole.input, moe], whole.moe),
        whole.input,
        made + np.select([full, selective], [largest, again], 0.0),
        whole.masks,
    )


class DroppedBytes(NamedTuple):
    """Bytes per token that a layer does not keep, since its backward pass computes them again."""

    attention: Floats
    dense: Floats  # of a dense layer's MLP
    moe: Floats  # of experts


def dropped_by_modules(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture
) -> DroppedBytes:
    """Return what Megatron-LM's selective recompute of `training.recompute_modules` drops.

    `mlp`, `moe` and `shared_experts` keep their input alone (tensor_parallel/random.py, CheckpointFunction),
    and the MLP of a dense layer has its norm in it (core/transformer/transformer_layer.py, _run_mlp; its
    first linear layer is a TELayerNormColumnParallelLinear). `layernorm` and `moe_act` drop results alone
    (CheckpointWithoutOutput): of norms that are no part of a linear layer, so the one before experts and
    latent attention's (models/gpt/gpt_layer_specs.py), and of the activation of experts
    (core/transformer/moe/experts.py, TEGroupedMLP.forward).
    """
    named, spread = training.recompute_modules, parts_of_sequence(layouts)
    nothing = np.zeros_like(spread)
    inputs_B = matmul_input_B(training)
    norm = inputs_B * shape.hidden_size / spread
    alone = norm if "layernorm" in named else nothing
    mlp = mlp_kept(shape, training, shape.intermediate_size) / layouts.tp
    experts = nothing
    if "moe" in named:
        experts = experts_kept(shape, layouts, training)
    elif shape.num_experts:
        arrived = tokens_of_experts(shape, layouts, training)
        if "moe_act" in named:
            experts = experts + inputs_B * shape.moe_intermediate_size * arrived / layouts.etp
        if "shared_experts" in named:
            experts = experts + mlp_kept(shape, training, shape.shared_intermediate_size) / layouts.tp
    attention = dropped_of_attention(shape, layouts, training, architecture)
    return DroppedBytes(
        attention + (alone if shape.kv_lora_rank else nothing),
        mlp + norm if "mlp" in named else nothing,
        experts + alone,
    )


def dropped_of_attention(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture
) -> Floats:
    """Return what is dropped by core_attn and mla_up_proj.

    core_attn keeps queries, keys and values (core/transformer/attention.py,
    _checkpointed_attention_forward) and the result, which the output layer takes; so it drops the scores, or
    a fused kernel's sums and its own copy of the result. mla_up_proj drops queries, keys and values, and
    what the norms of both latents keep (core/transformer/multi_latent_attention.py,
    qkv_up_proj_and_rope_apply); a kernel that copied them into its own order keeps its copies.
    """
    own_order = reorders(layouts, training, architecture)
    dropped: Floats = np.zeros_like(parts_of_sequence(layouts))
    if "core_attn" in training.recompute_modules:
        sums = 0 if training.attention == "unfused" else 4 * shape.num_attention_heads
        copy = np.where(own_order, 2 * shape.attention_size, 0.0)
        dropped = dropped + scores_kept(shape, layouts, training) + (sums + copy) / layouts.tp
    if "mla_up_proj" in training.recompute_modules:
        copied = own_order if "core_attn" not in training.recompute_modules else False
        projected = 2 * (shape.query_size + shape.key_value_size) / layouts.tp
        latents = 2 * (shape.q_lora_rank + shape.kv_lora_rank) / parts_of_sequence(layouts)
        dropped = dropped + np.where(copied, 0.0, projected) + latents
    return dropped
