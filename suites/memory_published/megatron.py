"""What Megatron-LM has on one GPU at its peak: a formula over the tensors that its code keeps.

Facts: NVIDIA/Megatron-LM commit d98e8a64 with its layers by Transformer Engine (commit d0067d0d), bf16 and
Adam. Names as in arXiv 2205.05198: s tokens of a sequence, b sequences of a micro-batch, h hidden size, a
heads, t tensor-parallel and p pipeline-parallel ranks, v vocabulary. All counts are of one rank.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from harness.records import Unavailable
from suites.memory_published.subject import Workload
from suites.training.dry_run.simulated_cuda import CUBLAS_HANDLES, CUBLAS_WORKSPACE_B

VOCABULARY_MULTIPLE = 128
"""The default of --make-vocab-size-divisible-by: what the vocabulary's part of each rank is a multiple of."""

TRANSFORMER_ENGINE_WORKSPACE_B = {"hopper": 32 * 2**20 + 1024, "blackwell": 32 * 2**20 + 1024}
"""Workspace by architecture, 4 MiB for others: transformer_engine/pytorch/cpp_extensions/gemm.py."""

LOGIT_B = 6
"""Bytes per logit: bf16, and an fp32 copy, which the loss overwrites (tensor_parallel/cross_entropy.py)."""


FIXED: dict[str, Any] = {
    "optimizer": "adamw",
    "techniques": [],
    "model": None,
    "hf_config": None,
    "kind": "allocated",
    "expandable_segments": False,
}
"""Fields of a workload of which the formula has one value."""


class MegatronPeak(NamedTuple):
    """Bytes of one rank at its peak, by part. `stage`: of the pipeline's ranks."""

    stage: int
    states: float  # parameters, gradients, fp32 parameters and Adam's moments
    activations: float
    logits: float
    workspaces: float

    @property
    def total_B(self) -> float:
        """Return all of them."""
        return self.states + self.activations + self.logits + self.workspaces


def refuse(workload: Workload) -> None:
    """Raise `Unavailable` for a layout or a field that this formula does not cover."""
    given = [name for name, value in FIXED.items() if getattr(workload, name) != value]
    if given:
        name = given[0]
        raise Unavailable(
            f"{name}={getattr(workload, name)!r}: the formula of Megatron-LM is for {FIXED[name]!r} alone"
        )
    if workload.stages_per_rank > 1 and workload.pp_size == 1:
        raise Unavailable("stages_per_rank needs pp_size of at least 2")
    ranks, stages = workload.tp_size, workload.pp_size * workload.stages_per_rank
    heads, groups = workload.num_attention_heads, workload.num_key_value_heads
    if workload.num_hidden_layers % stages:
        raise Unavailable(f"{stages} stages do not divide num_hidden_layers={workload.num_hidden_layers}")
    if heads % ranks or groups % ranks or workload.intermediate_size % ranks:
        raise Unavailable(
            f"tp_size={ranks} does not divide num_attention_heads={heads}, num_key_value_heads={groups} "
            f"and intermediate_size={workload.intermediate_size}"
        )
    if workload.sequence_parallel and ranks == 1:
        raise Unavailable("sequence_parallel needs tp_size of at least 2")
    if workload.seq_len % (workload.cp_size * (ranks if workload.sequence_parallel else 1)):
        raise Unavailable(f"the ranks that share a sequence do not divide seq_len={workload.seq_len}")
    if workload.stages_per_rank > 1 and workload.gradient_accumulation_steps % workload.pp_size:
        count = workload.gradient_accumulation_steps
        raise Unavailable(
            f"interleaved stages need a multiple of pp_size={workload.pp_size} micro-batches, not {count}"
        )


def peak_of_rank(workload: Workload) -> MegatronPeak:
    """Return the peak of the stage that takes the most; of a published peak, that of the last rank.

    The last rank writes Megatron-LM's log (training/global_vars.py). Raises `Unavailable`, see `refuse`.
    """
    refuse(workload)
    last = workload.pp_size - 1
    stages = range(workload.pp_size) if workload.published is None else [last]
    return max((peak_of_stage(workload, stage) for stage in stages), key=lambda one: one.total_B)


def peak_of_stage(workload: Workload, stage: int) -> MegatronPeak:
    """Return the peak of one rank of a stage: where the loss is computed, or one layer's backward pass.

    Apart from the loss, it counts what one backward pass makes: what is recomputed, and gradients of the
    layer's result and of the MLP's inner results.
    """
    waiting = passes_in_flight(workload, stage)
    layers = workload.num_hidden_layers / (workload.pp_size * workload.stages_per_rank) * waiting
    kept_B = layers * (input_B(workload) if workload.recompute == "full" else layer_B(workload))
    if stage == 0:  # of the embedding's dropout
        kept_B += min(waiting, workload.pp_size) * masks_B(workload) / 2
    backward_B = input_B(workload) + 2 * tokens_of_rank(workload) * inner_size(workload) / workload.tp_size
    if workload.recompute == "full":
        backward_B += layer_B(workload)
    elif workload.recompute == "selective" and workload.attention == "unfused":
        backward_B += scores_B(workload)
    loss_B = 0.0
    if stage == workload.pp_size - 1:
        loss_B = logits_B(workload)
    if backward_B > loss_B:
        kept_B, loss_B = kept_B + backward_B, 0.0
    data_ranks = workload.dp_size * workload.cp_size
    each_B = 6 + 12 / data_ranks if workload.distributed_optimizer else 18
    each_workspace_B = workload.cublas_workspace_B or CUBLAS_WORKSPACE_B[workload.architecture]
    engine_B = TRANSFORMER_ENGINE_WORKSPACE_B.get(workload.architecture, 4 * 2**20)
    workspaces_B = CUBLAS_HANDLES * each_workspace_B + engine_B
    return MegatronPeak(stage, each_B * parameters_of(workload, stage), kept_B, loss_B, workspaces_B)


def logits_B(workload: Workload) -> float:
    """Return what the last stage has where the loss is computed: the last norm, its result and the logits.

    With sequence parallelism, the output layer's input is also gathered into a buffer that stays.
    """
    tokens = tokens_of_rank(workload)
    gathered_B = 2 * tokens * workload.hidden_size if workload.sequence_parallel else 0
    return (
        2 * input_B(workload) + gathered_B + LOGIT_B * tokens * padded_vocabulary(workload) / workload.tp_size
    )


def passes_in_flight(workload: Workload, stage: int) -> int:
    """Return how many forward passes of one of a rank's stages await their backward pass at most.

    core/pipeline_parallel/schedules.py: p - stage of 1F1B, 2(p - stage - 1) + (m - 1)p + 1 of interleaved
    1F1B with m stages per rank.
    """
    ranks, each, count = workload.pp_size, workload.stages_per_rank, workload.gradient_accumulation_steps
    if ranks == 1:
        return 1
    warm_up = ranks - stage - 1
    if each > 1:
        warm_up = 2 * warm_up + (each - 1) * ranks
    return min(warm_up + 1, count * each)


def tokens_of_rank(workload: Workload) -> float:
    """Return sb, of the part of each sequence that a context-parallel rank has."""
    return workload.seq_len * workload.micro_batch_size / workload.cp_size


def parts_of_sequence(workload: Workload) -> int:
    """Return over how many ranks norms, dropout and residuals are spread: t with sequence parallelism."""
    return workload.tp_size if workload.sequence_parallel else 1


def input_B(workload: Workload) -> float:
    """Return the bytes of a layer's input, 2sbh."""
    return 2 * tokens_of_rank(workload) * workload.hidden_size / parts_of_sequence(workload)


def masks_B(workload: Workload) -> float:
    """Return the bytes of a layer's two dropout masks, sbh each."""
    return input_B(workload) if workload.dropout else 0.0


def layer_B(workload: Workload) -> float:
    """Return what one layer keeps for its backward pass.

    In bf16: inputs and results of both norms, queries, keys, values, the attention's result, the MLP's first
    result and its activation. Flash attention's result is kept twice where its order (b, s) differs from the
    layers' (s, b); unfused attention keeps scores after softmax, their mask and what dropout makes of them.
    """
    tokens, heads = tokens_of_rank(workload), workload.num_attention_heads
    size = workload.hidden_size
    keys = size * workload.num_key_value_heads // heads
    results = 2 if workload.attention == "flash" and workload.micro_batch_size > 1 else 1
    shared_B = 2 * tokens * (size + 2 * keys + results * size + inner_size(workload))
    if workload.attention != "unfused" and workload.recompute != "selective":
        shared_B += 4 * tokens * heads  # fp32 sums of rows
    kept_B = 4 * input_B(workload) + masks_B(workload) + shared_B / workload.tp_size
    if workload.attention == "unfused" and workload.recompute != "selective":
        kept_B += scores_B(workload)
    return kept_B


def inner_size(workload: Workload) -> int:
    """Return the elements per token of the MLP's first result and of its activation."""
    return workload.intermediate_size * (3 if workload.mlp == "swiglu" else 2)


def scores_B(workload: Workload) -> float:
    """Return what unfused attention keeps of one layer's scores, 5as²b/t with dropout."""
    each_B = 5 if workload.dropout else 2
    scores = tokens_of_rank(workload) * workload.num_attention_heads * workload.seq_len
    return each_B * scores / workload.tp_size


def padded_vocabulary(workload: Workload) -> int:
    """Return the vocabulary with the entries that make it divisible."""
    multiple = VOCABULARY_MULTIPLE * workload.tp_size
    return ceil(workload.vocab_size / multiple) * multiple


def parameters_of(workload: Workload, stage: int) -> float:
    """Return the parameters of one rank of a stage. With tied embeddings the last stage has a copy."""
    size, ranks, wide = workload.hidden_size, workload.tp_size, workload.intermediate_size
    columns = size + 2 * size * workload.num_key_value_heads // workload.num_attention_heads
    columns += wide * (2 if workload.mlp == "swiglu" else 1)
    layer = (columns * size + (size + wide) * size) / ranks
    if workload.bias:
        layer += columns / ranks + 2 * size
    norm = size * (2 if workload.norm == "layer" else 1)
    count = (layer + 2 * norm) * workload.num_hidden_layers / workload.pp_size
    vocabulary = padded_vocabulary(workload) * size / ranks
    if stage == 0:
        count += vocabulary + (
            workload.max_position_embeddings * size if workload.position == "learned" else 0
        )
    if stage == workload.pp_size - 1:
        count += norm + (0 if stage == 0 and workload.tie_word_embeddings else vocabulary)
    return count
