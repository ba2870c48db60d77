"""Bytes that autograd keeps of the parts of one layer on one rank, by the tensors of each program.

Names as in arXiv 2205.05198: t tensor-parallel ranks. Sizes are per token of a rank and in bytes; bf16 has
two. Facts: NVIDIA/Megatron-LM commit d98e8a64 with layers by Transformer Engine commit d0067d0d;
huggingface/nanotron commit 2411b022, models/llama.py; torchtitan and Composer's MPT run torch's own
operations.
"""

from __future__ import annotations

import numpy as np

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.dispatch import routing_kept, summed_kept
from suites.training.layouts.layout import Floats, Layouts, Training, parts_of_sequence
from suites.training.workload import Architecture

FP8_INPUT_B = {"fp8": 1.0, "mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per element in which Transformer Engine keeps the inputs of matmuls, with their scales."""


def norms_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the inputs and results of a layer's norms; results are a matmul's input, so of its precision."""
    spread = parts_of_sequence(layouts)
    return shape.norms_per_layer * shape.hidden_size * (2 + matmul_input_B(training)) / spread


def gathered_kept(shape: TransformerShape, layouts: Layouts, training: Training, inputs: int) -> Floats:
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

    Megatron-LM fuses SwiGLU: gate and up, and their product. Elsewhere the gate's activation is kept, too.
    """
    first: float = 2 * width * (2 if shape.gated else 1)
    gate = 2 * width if shape.gated and training.program != "megatron" else 0
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
    the product keeps both of its factors (core/transformer/moe/experts.py, bias_act_func).
    """
    apart = training.program == "megatron" and not shape.gated
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
    inputs = matmul_input_B(training) * shape.hidden_size
    within = mlp_kept(shape, training, shape.moe_intermediate_size) + weighted_kept(shape, training)
    experts = arrived * (inputs + within / layouts.etp)
    shared = mlp_kept(shape, training, shape.shared_intermediate_size) / layouts.tp
    if shape.shared_intermediate_size and training.program == "megatron":
        shared = shared + 2 * shape.hidden_size / spread
    elif shape.shared_intermediate_size:
        shared = shared + np.where(spread > 1, 2 * shape.hidden_size, 0.0)
    dispatched = routing_kept(shape, layouts, training) + summed_kept(shape, layouts, training)
    return np.asarray(experts + shared + dispatched, dtype=float)


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

    Of experts also their input as it arrived and as it is sorted.
    """
    widths = 3 if shape.gated else 2
    dense = 2 * widths * shape.intermediate_size / layouts.tp
    if not shape.num_experts:
        return np.asarray(dense, dtype=float)
    arrived = tokens_of_experts(shape, layouts, training)
    experts = 2 * (widths * shape.moe_intermediate_size / layouts.etp + 2 * shape.hidden_size) * arrived
    return np.asarray(np.maximum(experts, dense if not all(shape.layers_are_moe) else 0.0), dtype=float)
