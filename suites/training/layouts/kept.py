"""Bytes that autograd keeps of one layer on one rank, by the tensors of each program, under each recompute.

First the parts of a layer, then the layer. Names as in arXiv 2205.05198: t tensor-parallel ranks. Sizes of
parts are per token of a rank and in bytes; bf16 has two. Facts: NVIDIA/Megatron-LM commit d98e8a64 with
layers by Transformer Engine commit d0067d0d; huggingface/nanotron commit 2411b022, models/llama.py;
torchtitan and Composer's MPT run torch's own operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.dispatch import routing_kept, summed_kept
from suites.training.layouts.layout import (
    RECOMPUTES,
    Floats,
    Layouts,
    Training,
    parts_of_sequence,
    tokens_of_rank,
)
from suites.training.workload import Architecture

FP8_INPUT_B = {"fp8": 1.0, "mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per element in which Transformer Engine keeps the inputs of matmuls, with their scales."""


def norms_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the inputs and results of a part's norms; results are a matmul's input, so of its precision."""
    spread = parts_of_sequence(layouts)
    return shape.norms_per_part * shape.hidden_size * (2 + matmul_input_B(training)) / spread


def gathered_kept(shape: TransformerShape, layouts: Layouts, training: Training, inputs: float) -> Floats:
    """Return by how much matmuls' inputs, gathered along sequences, exceed a rank's own part; so many inputs.

    torch's column-parallel linear layers keep what they gathered. So do nanotron's, unless
    tp_recompute_allgather (parallel/tensor_parallel/functional.py); that it was off is inferred from
    published memory. Megatron-LM gathers again in the backward pass (core/tensor_parallel/layers.py).
    """
    spread = parts_of_sequence(layouts)
    if training.program not in ("nanotron", "torchtitan"):
        return np.zeros_like(spread)
    return np.asarray(inputs * matmul_input_B(training) * shape.hidden_size * (1 - 1 / spread), dtype=float)


def matmul_input_B(training: Training) -> float:
    """Return the bytes per element of an input that a matmul keeps for its weight's gradient.

    torchao keeps inputs as they are, and casts them again (torchao/float8/float8_linear.py).
    """
    return FP8_INPUT_B.get(training.precision, 2.0) if training.program == "megatron" else 2.0


def attention_kept(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture
) -> Floats:
    """Return queries, keys, values, attention's result and fp32 sums of rows; and the result's copies.

    A kernel that wants (batch, sequence) has a result in another order than the layers' (sequence, batch), so
    that the output layer's input is a copy of it where a micro-batch has several sequences: FlashAttention,
    which Transformer Engine prefers below Hopper, and nanotron's. In FP8 the output layer keeps a copy, too.
    """
    queries, keys_values, result = shape.query_size, shape.key_value_size, shape.attention_size
    if training.program == "torchtitan":  # repeats keys and values for all heads
        keys_values = queries + result
    ordered = training.program in ("megatron", "nanotron")
    copies = np.where(reorders(layouts, training, architecture), 2.0, 1.0) + (
        matmul_input_B(training) / 2 if training.precision in FP8_INPUT_B and ordered else 0.0
    )
    kept = 2 * (queries + keys_values + copies * result)
    if shape.attention_gate:  # the gate, and the result before it
        kept = kept + 2 * 2 * result
    if shape.qk_norm_size:
        kept = kept + 2 * (queries + keys_values / 2)
    if training.attention != "unfused":
        kept = kept + 4 * shape.num_attention_heads
    kept = kept / layouts.tp
    if not shape.kv_lora_rank:
        return np.asarray(kept, dtype=float)
    # latent: results of the down projections and of their norms, on all ranks of a sequence's part
    latent = 2 * (2 * shape.q_lora_rank + 2 * shape.kv_lora_rank + shape.qk_rope_head_dim)
    return np.asarray(kept + latent / parts_of_sequence(layouts), dtype=float)


def mixer_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return what a linear mixer keeps besides its norm: what its kernels take, and the output layer's input.

    mamba2: the projections, as the convolution and the scan take them together, the scan's result before and
    after its gate (mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn;
    core/ssm/mamba_mixer.py), which is in the layers' order, too, where a micro-batch has several sequences;
    that is inferred from peaks that Megatron-LM's tests published. delta: the projections, queries and keys
    as they are convolved and, normed, for each head of values, decays in fp32, the inverse of a chunk's
    products, the values and the result (fla/ops/gated_delta_rule/chunk.py; core/ssm/gated_delta_net). Others
    by the inputs of their kernels.
    """
    mixer = shape.mixer
    if mixer is None:
        return np.zeros_like(layouts.tp, dtype=float)
    keys = 2 * mixer.heads * mixer.state  # queries and keys of every head
    kept = {
        "mamba2": mixer.projected + 2 * mixer.inner,
        "mamba": mixer.projected + 3 * mixer.inner + 2 * mixer.key_size,
        "delta": mixer.projected
        + 2 * mixer.key_size
        + keys
        + 2 * mixer.inner
        + mixer.heads * (2 + mixer.chunk),
        "kimi_delta": mixer.projected
        + 2 * mixer.key_size
        + keys
        + 5 * mixer.inner
        + mixer.heads * mixer.chunk,
        "lightning": mixer.projected + 2 * mixer.inner,
        "convolution": mixer.projected + 2 * mixer.inner,
    }[mixer.name]
    ordered = mixer.name == "mamba2" and training.program == "megatron"
    copies = np.where((layouts.micro_batch_size > 1) & ordered, mixer.inner, 0)
    total = 2 * (kept + copies) + matmul_input_B(training) * mixer.inner
    return np.asarray(total / layouts.tp, dtype=float)


def backward_of_mixer(shape: TransformerShape, layouts: Layouts) -> Floats:
    """Return what a linear mixer's backward pass makes.

    Gradients of the projections and of the result, the convolved values again, and each chunk's state and
    its gradient in fp32.
    """
    mixer = shape.mixer
    if mixer is None:
        return np.zeros_like(layouts.tp, dtype=float)
    states = 2 * 4 * mixer.inner * mixer.state / mixer.chunk
    made = 2 * (mixer.projected + mixer.convolved + mixer.inner) + states
    return np.asarray(made / layouts.tp, dtype=float)


def reorders(layouts: Layouts, training: Training, architecture: Architecture) -> np.ndarray:
    """Return whether attention's kernel wants its inputs and result in another order than the layers'."""
    ordered = training.program in ("megatron", "nanotron")
    preferred = training.attention == "fused" and architecture == "ampere"
    flash = training.program == "nanotron" or training.attention == "flash" or preferred
    return np.asarray((layouts.micro_batch_size > 1) & ordered & flash)


def scores_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return what unfused attention keeps of the scores: 5as/t with dropout, 2as/t without."""
    if training.attention != "unfused":
        return np.zeros_like(layouts.tp, dtype=float)
    each = 5 if shape.dropout else 2
    return np.asarray(each * shape.num_attention_heads * training.seq_len / layouts.tp, dtype=float)


def backward_of_scores(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return what unfused attention's backward pass makes of the scores: gradients of the softmax's result.

    And of its input, which Megatron-LM and Transformer Engine write in the same place
    (core/fusions/fused_softmax.py, and its kernels).
    """
    if training.attention != "unfused":
        return np.zeros_like(layouts.tp, dtype=float)
    each = 2 if training.program == "megatron" else 4
    return np.asarray(each * shape.num_attention_heads * training.seq_len / layouts.tp, dtype=float)


def mlp_kept(shape: TransformerShape, training: Training, width: int) -> float:
    """Return an MLP's first result and its activation, before tensor parallelism.

    Megatron-LM and Liger fuse SwiGLU: gate and up, and their product. Elsewhere the gate's activation is
    kept, too.
    """
    first: float = 2 * width * (2 if shape.gated else 1)
    fused = training.program == "megatron" or training.fused_layers
    gate = 2 * width if shape.gated and not fused else 0
    return first + gate + matmul_input_B(training) * width


def tokens_of_experts(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return how many rows a rank's experts compute per token that it has.

    Ranks that share an expert gather theirs, unless they have the same ones.
    """
    spread = parts_of_sequence(layouts)
    gathered = np.where(spread > 1, layouts.etp / spread, 1.0)
    return np.asarray(training.imbalance * shape.experts_per_token * gathered, dtype=float)


def weighted_kept(shape: TransformerShape, training: Training) -> float:
    """Return what else the activation of experts keeps, before tensor parallelism.

    Megatron-LM multiplies its result with the token's probability. SwiGLU's kernel does that, too; otherwise
    the product keeps both of its factors (core/transformer/moe/experts.py, bias_act_func). Nemotron's
    recipes fuse its squared ReLU with it, too (use_fused_weighted_squared_relu).
    """
    apart = training.program == "megatron" and not shape.gated and not shape.mixer
    return 2.0 * shape.moe_intermediate_size if apart else 0.0


def experts_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return what a mixture of experts keeps: routing, tokens as they arrived, experts, the shared MLP.

    Of a rank whose experts get `imbalance` times the mean. Tokens go to them as a rank has them. Megatron-LM
    gives the shared MLP an input of its own; torch gathers one for it where sequences are shared.
    """
    if not shape.num_experts:
        return np.zeros_like(layouts.tp, dtype=float)
    spread = parts_of_sequence(layouts)
    arrived = tokens_of_experts(shape, layouts, training)
    inputs = matmul_input_B(training) * shape.expert_input_size
    within = mlp_kept(shape, training, shape.moe_intermediate_size) + weighted_kept(shape, training)
    experts = arrived * (inputs + within / layouts.etp)
    shared = mlp_kept(shape, training, shape.shared_intermediate_size) / layouts.tp
    if shape.shared_intermediate_size and training.program == "megatron":
        shared = shared + 2 * shape.hidden_size / spread
    elif shape.shared_intermediate_size:
        shared = shared + np.where(spread > 1, 2 * shape.hidden_size, 0.0)
    dispatched = routing_kept(shape, layouts, training) + summed_kept(shape, layouts, training)
    latent = np.zeros_like(spread)
    if shape.moe_latent_size:  # inputs of both projections; the first is the norm's result, but in 8 bits
        copied = shape.hidden_size if training.precision in FP8_INPUT_B else 0
        latent = matmul_input_B(training) * (shape.moe_latent_size + copied) / spread
    return np.asarray(experts + shared + dispatched + latent, dtype=float)


def matmuls_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return what torchtitan's selective checkpointing keeps: every second matmul's result, and attention's.

    torchtitan/distributed/activation_checkpoint.py: of queries, keys, values, output, gate, up and down in
    turn the first, third, fifth and seventh.
    """
    spread = parts_of_sequence(layouts)
    of_heads = shape.query_size + shape.num_key_value_heads * shape.value_dim + shape.attention_size
    kept = 2 * (of_heads + shape.intermediate_size) + 4 * shape.num_attention_heads
    return np.asarray(kept / layouts.tp + 4 * shape.hidden_size / spread, dtype=float)


def backward_of_mlp(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the gradients of an MLP's inner results, which its backward pass makes.

    Of experts also their input as it arrived and as it is sorted. Liger's take the place of gate and up, but
    the product's.
    """
    widths = 3 if shape.gated else 2
    of_dense = 1 if shape.gated and training.fused_layers else widths
    dense = 2 * of_dense * shape.intermediate_size / layouts.tp
    if not shape.num_experts:
        return np.asarray(dense, dtype=float)
    arrived = tokens_of_experts(shape, layouts, training)
    experts = 2 * (widths * shape.moe_intermediate_size / layouts.etp + 2 * shape.expert_input_size) * arrived
    return np.asarray(np.maximum(experts, dense if not all(shape.layers_are_moe) else 0.0), dtype=float)


class KeptOfLayer(NamedTuple):
    """Bytes of one layer's parts and one micro-batch on one rank, as arrays over layouts."""

    attention: Floats  # of attention and its norms
    linear: Floats  # of the mixer in its place
    mlp: Floats
    experts: Floats
    input: Floats  # of the layer's input alone
    recomputed: Floats  # what exists in one layer's backward pass besides what is kept
    masks: Floats  # of the dropout after the embedding

    @property
    def dense(self) -> Floats:
        """Return those of a layer with attention and an MLP."""
        return self.attention + self.mlp

    @property
    def moe(self) -> Floats:
        """Return those of a layer with attention and experts."""
        return self.attention + self.experts


def kept_of_layer(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture = "hopper"
) -> KeptOfLayer:
    """Return what one layer keeps until its backward pass, and what that pass makes."""
    tokens = tokens_of_rank(layouts, training)
    spread = parts_of_sequence(layouts)
    attention = attention_kept(shape, layouts, training, architecture)
    masks = 2 * shape.hidden_size / spread if shape.dropout else np.zeros_like(tokens)
    norms = norms_kept(shape, layouts, training)
    each = shape.norms_per_part
    gathered = gathered_kept(shape, layouts, training, each)
    attention = attention + masks + norms + gathered + scores_kept(shape, layouts, training)
    linear = mixer_kept(shape, layouts, training) + norms + gathered
    mlp = norms + mlp_kept(shape, training, shape.intermediate_size) / layouts.tp + gathered
    experts = norms + experts_kept(shape, layouts, training)
    experts = experts + gathered_kept(shape, layouts, training, each - 1)
    of_input = 2 * shape.hidden_size / spread
    whole = KeptOfLayer(attention, linear, mlp, experts, of_input, np.zeros_like(tokens), masks / 2)
    chosen = by_recompute(shape, layouts, training, whole, architecture)
    return KeptOfLayer(*(np.asarray(one * tokens, dtype=float) for one in chosen))


def largest_layer(shape: TransformerShape, kept: KeptOfLayer) -> Floats:
    """Return what the layer keeps that keeps the most; one with experts, if there are some."""
    mixer = np.maximum(kept.attention, kept.linear) if shape.mixer else kept.attention
    mlp = kept.experts if shape.num_experts else kept.mlp
    return np.maximum(mixer, mlp) if shape.mlp_layers else mixer + mlp


def by_recompute(
    shape: TransformerShape,
    layouts: Layouts,
    training: Training,
    whole: KeptOfLayer,
    architecture: Architecture,
) -> KeptOfLayer:
    """Return what is left to keep under each recompute, and what a layer's backward pass makes."""
    has_moe = shape.num_experts > 0
    freed = mlp_kept(shape, training, shape.intermediate_size) / layouts.tp
    freed = np.minimum(freed, experts_kept(shape, layouts, training)) if has_moe else freed
    of_scores = backward_of_scores(shape, layouts, training) - freed  # the MLP's backward pass is over then
    made = np.maximum(backward_of_mlp(shape, layouts, training), of_scores)
    made = whole.input + np.maximum(made, backward_of_mixer(shape, layouts))
    full = layouts.recompute == RECOMPUTES.index("full")
    selective = layouts.recompute == RECOMPUTES.index("selective")
    left = whole
    if training.program == "megatron":
        dropped = dropped_by_modules(shape, layouts, training, architecture)
        attention = whole.attention - dropped.attention
        left = left._replace(
            attention=attention, mlp=whole.mlp - dropped.dense, experts=whole.experts - dropped.moe
        )
        again = np.maximum(dropped.attention, dropped.moe if has_moe else dropped.dense)
    else:
        nothing, products = np.zeros_like(whole.input), matmuls_kept(shape, layouts, training)
        left = left._replace(attention=products, mlp=nothing, experts=nothing)
        again = largest_layer(shape, whole) - products
    inputs = whole.input if shape.mlp_layers else np.zeros_like(whole.input)  # of a part after another
    at_full = (whole.input, whole.input, inputs, inputs)
    attention, linear, mlp, experts = (
        np.select([full, selective], [fully, partly], each)
        for fully, partly, each in zip(at_full, left[:4], whole[:4], strict=True)
    )
    recomputed = made + np.select([full, selective], [largest_layer(shape, whole), again], 0.0)
    return KeptOfLayer(attention, linear, mlp, experts, whole.input, recomputed, whole.masks)


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
