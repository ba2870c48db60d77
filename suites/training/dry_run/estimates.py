"""Closed formulas for the bytes of training on one rank, as their sources print them.

Suites choose among them and name the assumptions that a step breaks. deepspeed's own estimators are
called with counts, because their `*_all_live` forms find a model's parameters by `data_ptr()`, which is 0
for all tensors on the meta device and all fake ones.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from harness.instruments.distributed.deepspeed_engine import choose_accelerator
from suites.training.step import TrainingStep
from suites.training.workload import Workload


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """A model's counts for the formulas. `largest_layer`: most parameters of one module itself."""

    parameters: int  # shared ones count once
    largest_layer: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int


COUNTED = [one.name for one in fields(ModelCounts)][2:]
"""Counts that are a workload's own."""


def count(model: nn.Module, workload: Workload) -> ModelCounts:
    """Return the counts of `model`, whose tensors may be fake; its shape is the workload's."""
    return ModelCounts(
        parameters=sum(p.numel() for p in model.parameters()),
        largest_layer=max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules()),
        **{name: getattr(workload, name) for name in COUNTED},
    )


def rule_40x_bytes(parameters: float) -> float:
    """Return the bytes to train a model: 40 per parameter (the paper's Table I; NAIRR Pilot's GPU estimate).

    Conditions there: a transformer, Adam, mixed precision. Whether checkpointing is included differs between
    versions of the source. It is a total for the full job and knows neither batch nor sequence length.
    """
    return 40 * parameters


class ModelStates(NamedTuple):
    """Model states: weights, gradients, and the optimizer's fp32 states."""

    weights: float
    gradients: float
    states: float


MIXED = ModelStates(2, 2, 12)
"""Bytes per parameter: 16-bit weight and gradient; fp32 weight, mean and variance (arXiv 1910.02054, 3.1)."""

ALL = ModelStates(1, 1, 1)


def zero_states_bytes(
    parameters: float, stage: int, ranks: int, sizes_B: ModelStates = MIXED, on_device: ModelStates = ALL
) -> float:
    """Return the bytes of model states on one of `ranks` devices under ZeRO `stage` 0 to 3.

    arXiv 1910.02054, section 3.1 and figure 1: stage 1 spreads the states, stage 2 the gradients too, stage
    3 all of it. `sizes_B` are bytes per parameter, 16 in all; fp32 Adam takes 4 + 4 + 8 = 16 as well.
    `on_device` are the shares that are not on the host: (1, 0, 0) is ZeRO-Offload's cut; on one rank,
    shares of 0 and 1 give its table of 16, 14, 4 and 2 bytes (arXiv 2101.06840, section 4). Left out:
    activations, temporary buffers, fragmentation.
    """
    spread = ModelStates(*(ranks if stage >= least else 1 for least in (3, 2, 1)))
    each = zip(sizes_B, on_device, spread, strict=True)
    return parameters * sum(size_B * share / count for size_B, share, count in each)


def first_stage_parameters(counts: ModelCounts, pp_size: int) -> float:
    """Return the parameters on the first of `pp_size` stages: its share of the layers, and the embedding.

    Megatron-LM's most loaded shard, in megatron/training/theoretical_memory_usage.py. Condition: the output
    layer has a weight of its own.
    """
    if pp_size == 1:
        return counts.parameters
    embedding = counts.vocab_size * counts.hidden_size
    return (counts.parameters - 2 * embedding) / pp_size + embedding


def interleaving_penalty(pp_size: int, stages_per_rank: int) -> float:
    """Return by how much interleaved 1F1B multiplies the activations of the first of `pp_size` ranks.

    arXiv 2205.05198, section 4.2.3: under 1F1B that rank keeps those of `pp_size` micro-batches, as many as
    all layers have of one; interleaved, 1 + (p - 1)/(pm) times these with m stages per rank.
    """
    return 1.0 if stages_per_rank == 1 else 1 + (pp_size - 1) / (pp_size * stages_per_rank)


def megatron_states_bytes(parameters: float, ranks: int, distributed_optimizer: bool) -> float:
    """Return the bytes of model states on one data-parallel rank: 18 per parameter, or 6 + 12/ranks.

    Megatron-LM, megatron/training/theoretical_memory_usage.py: as ZeRO's 16, with gradients kept in fp32
    (4 B) next to 16-bit ones; its distributed optimizer spreads Adam's 12 B as ZeRO's stage 1 does.
    """
    return parameters * (6 + 12 / ranks if distributed_optimizer else 18)


def korthikanti_layer_bytes(
    seq_len: int,
    micro_batch_size: int,
    hidden_size: int,
    num_attention_heads: int,
    kept: str,
    tp_size: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Return the bytes of activations that one layer keeps for its backward pass, on one of `tp_size` ranks.

    arXiv 2205.05198, equation 1 and table 2, `kept` being `all`: sbh(10 + 24/t + 5as/(ht)); `no_scores`
    (selective recompute, or an attention that never stores its score matrix): sbh(10 + 24/t); `input` (full
    recompute): 2sbh. With t = 1 these are sbh(34 + 5as/h), 34sbh, 2sbh; with sequence parallelism, these
    divided by t (equation 4; section 5 for the inputs, of which each rank then keeps its part).
    Conditions: 2-byte activations, dropout masks of 1 byte, an MLP of width 4h with GELU, LayerNorm, as many
    key as query heads. Left out: embeddings, logits and loss, and what a recomputed layer needs meanwhile.
    """
    if sequence_parallel:
        alone_B = korthikanti_layer_bytes(seq_len, micro_batch_size, hidden_size, num_attention_heads, kept)
        return alone_B / tp_size
    sbh = float(seq_len * micro_batch_size * hidden_size)
    if kept == "input":
        return 2 * sbh
    scores = 5 * num_attention_heads * seq_len / (hidden_size * tp_size) if kept == "all" else 0.0
    return sbh * (10 + 24 / tp_size + scores)


def largest_operator_bytes(hidden_size: int, widest: int, element_B: int = 2) -> float:
    """Return the bytes of weight and gradient of the largest operator, which ZeRO stage 3 gathers to run it.

    arXiv 2104.07857, section 3: a matrix of h to 4h takes 4h·4h bytes with 2-byte elements. `widest` is the
    largest output here, which may be the vocabulary.
    """
    return 2.0 * element_B * hidden_size * widest


def megatron_activations_bytes(
    seq_len: int, micro_batch_size: int, counts: ModelCounts, pp_size: int = 1, stages_per_rank: int = 1
) -> float:
    """Return the bytes of activations on the first of `pp_size` ranks: Megatron-LM's estimator.

    Same file as `megatron_states_bytes`: sbh(18 + 4·intermediate_size/h) per layer, 8sb + sbh for embedding
    and dropout, 4sbh(1 + v/h) for the output layer and the loss. In a pipeline there is an embedding's part
    for each rank, and no output layer. Conditions: bf16, selective recompute or flash attention, at least
    `pp_size` micro-batches. As in that file, ranks that share each layer also by sequence have equal parts.
    """
    sbh = float(seq_len * micro_batch_size * counts.hidden_size)
    layers_B = counts.num_hidden_layers * sbh * (18 + 4 * counts.intermediate_size / counts.hidden_size)
    embedding_B = 8 * seq_len * micro_batch_size + sbh
    if pp_size > 1:
        return (layers_B + pp_size * embedding_B) * interleaving_penalty(pp_size, stages_per_rank)
    return layers_B + embedding_B + 4 * sbh * (1 + counts.vocab_size / counts.hidden_size)


def deepspeed_states_bytes(
    stage: int,
    parameters: int,
    largest_layer: int,
    ranks: int,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
) -> float:
    """Return the bytes of model states on one of `ranks` GPUs of a node, by deepspeed's ZeRO estimators.

    `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` of the installed
    deepspeed. Conditions: Adam, 16-bit training with fp32 states, gradients in both. Left out: activations,
    communication buffers. Raises ImportError where deepspeed is absent or broken.
    """
    if stage not in (2, 3):
        raise ValueError(f"ZeRO stage {stage}: deepspeed has estimators for stages 2 and 3")
    counts = (parameters,) if stage == 2 else (parameters, largest_layer)
    switches = {} if stage == 2 else {"cpu_offload_params": offload_parameters}
    return float(estimator(stage)(*counts, ranks, 1, cpu_offload=offload_optimizer, **switches)[1])


@cache
def estimator(stage: int) -> Any:
    """Return the installed deepspeed's estimator, without the output of its search for a device."""
    choose_accelerator()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    if stage == 2:
        return stage_1_and_2.estimate_zero2_model_states_mem_needs
    return stage3.estimate_zero3_model_states_mem_needs


MOMENTS = {"adamw": 2, "sgd_momentum": 1}
"""Tensors of an optimizer's state per parameter."""


def host_memory_B(step: TrainingStep, counts: ModelCounts) -> float:
    """Return the bytes that one rank keeps in its host's memory: weights, gradients, moments.

    0 where nothing is there, and where it is not known: with adapters, whose frozen weights have no states,
    with other optimizers, and where a part stays on the device.
    """
    on_host = step.features.optimizer_on == step.features.parameters_on == "host"
    if not on_host or step.settings_of("lora") is not None or step.workload.optimizer not in MOMENTS:
        return 0.0
    tensors = 2 + MOMENTS[step.workload.optimizer]
    return tensors * step.model_dtype.itemsize * counts.parameters / step.shard_ranks
