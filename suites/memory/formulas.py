"""What published closed formulas say of one rank's peak, from a step's features and its model's counts.

`suites.memory` yields their figures, origin `calculated`, beside those of `walk` and `measure`; nothing here
allocates or runs. Formulas stand as their sources print them, also where a step breaks their assumptions; the
estimate then says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from suites.memory import deepspeed_estimators
from suites.memory.step import TrainingStep, Workload

STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
"""ZeRO's stage for each kind of data-parallel sharding; 0 keeps everything on every rank."""

NOT_ADAM = "the formula counts Adam's states; this step trains with {optimizer}"


class NotDefinedError(Exception):
    """The formula does not speak of such a step; the text says why."""


class Estimate(NamedTuple):
    """One method's figure. `reason`: why there is none, or which of its assumptions this step breaks."""

    method: str
    peak_B: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the formulas know of a model. `largest_layer`: most parameters held by one module itself."""

    parameters: int  # each shared one once
    largest_layer: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int


def count(model: nn.Module, workload: Workload) -> Counts:
    """Counts of `model`, whose tensors may be fake or on the meta device; its shape is the workload's."""
    return Counts(
        parameters=sum(p.numel() for p in model.parameters()),
        largest_layer=max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules()),
        num_hidden_layers=workload.num_hidden_layers,
        hidden_size=workload.hidden_size,
        num_attention_heads=workload.num_attention_heads,
        num_key_value_heads=workload.num_key_value_heads,
        intermediate_size=workload.intermediate_size,
        vocab_size=workload.vocab_size,
    )


def gpus(peak_B: float, capacity_B: float = 80e9) -> int:
    """Devices of `capacity_B` bytes that hold `peak_B` bytes spread evenly: Table I's arithmetic."""
    return max(1, math.ceil(peak_B / capacity_B))


def rule_40x_bytes(parameters: float) -> float:
    """Bytes to train a model: 40 a parameter (the paper and its Table I; NAIRR Pilot's GPU estimate).

    Conditions there: a transformer, Adam, mixed precision. Whether checkpointing is included differs between
    versions of the source. It is a total for the whole job and knows neither batch nor sequence length.
    """
    return 40 * parameters


def zero_states_bytes(parameters: float, stage: int, ranks: int) -> float:
    """Bytes of model states on one of `ranks` data-parallel ranks under ZeRO `stage` 0 to 3.

    arXiv 1910.02054, section 3.1 and figure 1: 2 B of 16-bit weight, 2 B of 16-bit gradient and K = 12 B of
    Adam's fp32 weight, mean and variance a parameter. Stage 1 spreads K, stage 2 the gradients too, stage 3
    all of it. Left out: activations, temporary buffers, fragmentation. fp32 Adam takes 4+4+8 = 16 B as well.
    """
    weights_B, gradients_B, adam_B = 2 * parameters, 2 * parameters, 12 * parameters
    return (
        weights_B / (ranks if stage >= 3 else 1)
        + gradients_B / (ranks if stage >= 2 else 1)
        + adam_B / (ranks if stage >= 1 else 1)
    )


def megatron_states_bytes(parameters: float, ranks: int, distributed_optimizer: bool) -> float:
    """Bytes of model states on one data-parallel rank: 18 a parameter, or 6 + 12/ranks.

    Megatron-LM, megatron/training/theoretical_memory_usage.py: as ZeRO's 16, with gradients kept in fp32
    (4 B) beside 16-bit ones; its distributed optimizer spreads Adam's 12 B as ZeRO's stage 1 does.
    """
    return parameters * (6 + 12 / ranks if distributed_optimizer else 18)


def korthikanti_layer_bytes(
    seq_len: int, batch: int, hidden_size: int, num_attention_heads: int, kept: str, tensor: int = 1
) -> float:
    """Bytes of activations that one layer keeps for its backward pass, on one of `tensor` ranks.

    arXiv 2205.05198, equation 1 and table 2, `kept` being `all`: sbh(10 + 24/t + 5as/(ht)); `no_scores`
    (selective recompute, or an attention that never stores its score matrix): sbh(10 + 24/t); `input` (full
    recompute): 2sbh. With t = 1 these are sbh(34 + 5as/h), 34sbh, 2sbh. Without sequence parallelism.
    Conditions: 2-byte activations, dropout masks of 1 byte, an MLP of width 4h with GELU, LayerNorm, as many
    key as query heads. Left out: embeddings, logits and loss, and what a recomputed layer holds meanwhile.
    """
    sbh = float(seq_len * batch * hidden_size)
    if kept == "input":
        return 2 * sbh
    scores = 5 * num_attention_heads * seq_len / (hidden_size * tensor) if kept == "all" else 0.0
    return sbh * (10 + 24 / tensor + scores)


def megatron_activations_bytes(seq_len: int, batch: int, counts: Counts) -> float:
    """Bytes of activations of a whole model on one rank: Megatron-LM's estimator.

    Same file as `megatron_states_bytes`: sbh(18 + 4·intermediate_size/h) a layer, 8sb + sbh for embedding
    and dropout,
    4sbh(1 + v/h) for the output layer and the loss. Conditions: bf16, selective recompute or flash attention.
    """
    sbh = float(seq_len * batch * counts.hidden_size)
    layers_B = counts.num_hidden_layers * sbh * (18 + 4 * counts.intermediate_size / counts.hidden_size)
    return layers_B + 8 * seq_len * batch + sbh + 4 * sbh * (1 + counts.vocab_size / counts.hidden_size)


def estimates(step: TrainingStep, counts: Counts) -> Iterator[Estimate]:
    """Every formula's figure for the peak bytes of one rank of `step`, or why it has none."""
    for method, formula in METHODS.items():
        try:
            peak_B = formula(step, counts)
        except NotDefinedError as refusal:
            yield Estimate(method, None, str(refusal))
        else:
            yield Estimate(method, peak_B, "; ".join(broken_assumptions(method, step, counts)))


def broken_assumptions(method: str, step: TrainingStep, counts: Counts) -> Iterator[str]:
    """What the method's source takes for granted and `step` does not do."""
    if step.features.precision == "fp32" and method != "states_16":
        yield "the formula is for mixed precision; this step computes in fp32"
    if method == "korthikanti":
        if counts.intermediate_size != 4 * counts.hidden_size:
            ours, theirs = counts.intermediate_size, 4 * counts.hidden_size
            yield f"the formula has an MLP of width {theirs}; this model's is {ours}"
        if counts.num_key_value_heads != counts.num_attention_heads:
            ours, theirs = counts.num_key_value_heads, counts.num_attention_heads
            yield f"the formula has {theirs} key heads; this model has {ours}"
    if method in ("deepspeed_zero2", "deepspeed_zero3"):
        yield "deepspeed's engine on one GPU, which holds copies that this step does not"


def _needs_adam(step: TrainingStep) -> None:
    if step.workload.optimizer != "adamw":
        raise NotDefinedError(NOT_ADAM.format(optimizer=step.workload.optimizer))


def _rule_40x(step: TrainingStep, counts: Counts) -> float:
    """The paper's nominal size ("7B") where the workload has one; spread evenly, as Table I's GPUs are."""
    _needs_adam(step)
    if step.features.sharding in ("zero1", "zero2"):
        raise NotDefinedError(
            "the rule gives a total and does not say which part of it each rank keeps whole"
        )
    total_B = rule_40x_bytes(step.workload.nominal_parameters or counts.parameters)
    return total_B / (1 if step.features.sharding == "none" else step.ranks)


def _states_16(step: TrainingStep, counts: Counts) -> float:
    _needs_adam(step)
    if step.features.sharding == "tensor":
        return zero_states_bytes(counts.parameters / step.ranks, 0, 1)
    return zero_states_bytes(counts.parameters, STAGES[step.features.sharding], step.ranks)


def _states_18(step: TrainingStep, counts: Counts) -> float:
    _needs_adam(step)
    sharding = step.features.sharding
    if sharding == "tensor":
        return megatron_states_bytes(counts.parameters / step.ranks, 1, distributed_optimizer=False)
    if sharding in ("zero2", "zero3"):
        raise NotDefinedError("Megatron's estimator spreads the optimizer's states alone (as ZeRO's stage 1)")
    return megatron_states_bytes(counts.parameters, step.ranks, distributed_optimizer=sharding == "zero1")


def _korthikanti(step: TrainingStep, counts: Counts) -> float:
    """ZeRO's states plus the activations of one micro-batch of all layers."""
    kept = (
        "no_scores" if step.features.attention == "sdpa" or step.features.recompute == "selective" else "all"
    )
    if step.features.recompute == "full":
        kept = "input"
    tensor = step.ranks if step.features.sharding == "tensor" else 1
    work = step.workload
    layer_B = korthikanti_layer_bytes(
        work.seq_len, work.micro_batch_size, counts.hidden_size, counts.num_attention_heads, kept, tensor
    )
    return _states_16(step, counts) + counts.num_hidden_layers * layer_B


def _megatron(step: TrainingStep, counts: Counts) -> float:
    features = step.features
    if features.sharding == "tensor":
        raise NotDefinedError(
            "this estimator of Megatron's needs sequence parallelism beside tensor parallelism"
        )
    if features.recompute == "full" or (features.attention == "explicit" and features.recompute == "none"):
        raise NotDefinedError("Megatron's estimator is for selective recompute or flash attention")
    work = step.workload
    return _states_18(step, counts) + megatron_activations_bytes(work.seq_len, work.micro_batch_size, counts)


def _deepspeed(step: TrainingStep, counts: Counts) -> float:
    """Deepspeed's estimator of the very stage that the step runs; model states alone."""
    _needs_adam(step)
    sharding = step.features.sharding
    if sharding == "zero1":
        raise NotDefinedError("deepspeed has no estimator for ZeRO stage 1")
    if sharding not in ("zero2", "zero3"):
        raise NotDefinedError(
            "deepspeed's estimators are for ZeRO stages 2 and 3; this step shards by neither"
        )
    return _by_deepspeed(STAGES[sharding], counts, step.ranks)


def _deepspeed_on_one(stage: int) -> Callable[[TrainingStep, Counts], float]:
    """What deepspeed's estimator of `stage` says of this model on one GPU, for a step that shards nothing."""

    def formula(step: TrainingStep, counts: Counts) -> float:
        _needs_adam(step)
        if step.features.sharding != "none" or step.ranks != 1:
            raise NotDefinedError("asked only of a step on one rank; see `deepspeed` for sharded ones")
        return _by_deepspeed(stage, counts, 1)

    return formula


def _by_deepspeed(stage: int, counts: Counts, ranks: int) -> float:
    try:
        return deepspeed_estimators.states_bytes(stage, counts.parameters, counts.largest_layer, ranks)
    except ImportError as error:
        raise NotDefinedError(f"deepspeed could not be imported: {error}") from error


METHODS: dict[str, Callable[[TrainingStep, Counts], float]] = {
    "rule_40x": _rule_40x,
    "states_16": _states_16,
    "states_18": _states_18,
    "korthikanti": _korthikanti,
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "deepspeed_zero2": _deepspeed_on_one(2),
    "deepspeed_zero3": _deepspeed_on_one(3),
}
"""Every closed formula by its `method`, in the order reported."""
