"""The closed formulas of `training.dry_run.estimates` applied to a step: each is a method of the suite.

Formulas are used as their sources print them, also where a step breaks their assumptions; the estimate then
names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from suites.memory.subject import Subject
from suites.training.dry_run import estimates as sources
from suites.training.dry_run.dry_run import is_sharded
from suites.training.step import TrainingStep

STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
STAGES |= dict.fromkeys(("tensor", "expert", "context", "pipeline"), 0)
"""ZeRO's stage over the ranks that can spread states, by a part of `Features.sharding`; 0 spreads nothing."""


class NotDefinedError(Exception):
    """The formula does not apply to such a step; the text names why."""


class MemoryEstimate(NamedTuple):
    """One method's value. `reason`: why there is none, or which of its assumptions this step breaks."""

    method: str
    peak_B: float | None
    reason: str = ""


def gpus(peak_B: float, capacity_B: float = 80e9) -> int:
    """Return how many devices of `capacity_B` hold `peak_B` spread evenly: Table I's arithmetic."""
    return max(1, math.ceil(peak_B / capacity_B))


def estimates(subject: Subject, counts: sources.ModelCounts) -> Iterator[MemoryEstimate]:
    """Return every formula's value for the peak bytes of one rank, or why it has none."""
    for method, formula in METHODS.items():
        try:
            peak_B = formula(subject, counts)
        except NotDefinedError as refusal:
            yield MemoryEstimate(method, None, str(refusal))
        else:
            yield MemoryEstimate(method, peak_B, "; ".join(broken_assumptions(method, subject.step, counts)))


def broken_assumptions(method: str, step: TrainingStep, counts: sources.ModelCounts) -> Iterator[str]:
    """Return the assumptions of the method's source that `step` breaks."""
    if step.features.precision == "fp32" and method != "states_16":
        yield "the formula is for mixed precision; this step computes in fp32"
    if method == "korthikanti":
        if counts.intermediate_size != 4 * counts.hidden_size:
            ours, theirs = counts.intermediate_size, 4 * counts.hidden_size
            yield f"the formula has an MLP of width {theirs}; this model's is {ours}"
        if counts.num_key_value_heads != counts.num_attention_heads:
            ours, theirs = counts.num_key_value_heads, counts.num_attention_heads
            yield f"the formula has {theirs} key heads; this model has {ours}"
    yield from step.features.states_unlike
    if method in HELD and (held := held_B_per_parameter(step)) != HELD[method]:
        yield f"the formula counts {HELD[method]} B/param of states and copies; this step holds {held}"
    if method in ("korthikanti", "megatron"):
        yield from step.features.activations_unlike
        if step.workload.num_experts is not None:
            yield "the formula has a dense MLP; this model has a mixture of experts"
        if step.features.precision == "autocast":
            yield "the formula has activations of 2 bytes; autocast keeps the residual stream in fp32"
    if method in ("deepspeed_zero2", "deepspeed_zero3"):
        yield "deepspeed's engine on one GPU, which holds copies that this step does not"


HELD = {"states_16": 16, "korthikanti": 16, "states_18": 18, "megatron": 18}
"""Bytes per parameter that a formula counts before activations, unsharded."""


def held_B_per_parameter(step: TrainingStep) -> int:
    """Return the bytes per parameter that an unsharded step with AdamW holds at the end of its backward pass.

    16 in fp32 (4 each of parameter, gradient and two moments), under autocast and with bf16 gradients; 18
    with fp32 gradients of bf16 parameters, and where autocast's bf16 copies exist next to kept gradients.
    """
    accumulated = step.workload.gradient_accumulation_steps > 1
    wide = step.features.precision == "fp32_grads" or (step.features.precision == "autocast" and accumulated)
    return 18 if wide else 16


def _needs_known_attention(step: TrainingStep) -> None:
    if step.features.attention == "unknown":
        raise NotDefinedError("the formula depends on the attention, which the user's own code chooses")


def _needs_adam(step: TrainingStep) -> None:
    if step.workload.optimizer != "adamw":
        raise NotDefinedError(
            f"the formula counts Adam's states; this step trains with {step.workload.optimizer}"
        )


def _stage(step: TrainingStep) -> int:
    sharding = step.features.sharding
    if unknown := set(sharding.split(", ")) - set(STAGES):
        raise NotDefinedError(
            f"the formula does not know how {min(unknown)!r} shards; it knows {', '.join(STAGES)}"
        )
    return max(STAGES[part] for part in sharding.split(", "))


def _rule_40x(subject: Subject, counts: sources.ModelCounts) -> float:
    """Apply the rule to the paper's nominal size ("7B") where there is one, spread evenly as in Table I."""
    step = subject.step
    _needs_adam(step)
    if step.features.sharding in ("zero1", "zero2", "context", "expert") or step.shard_within is not None:
        raise NotDefinedError(
            "the rule gives a total and does not say which part of it is replicated on each rank"
        )
    total_B = sources.rule_40x_bytes(subject.nominal_parameters or counts.parameters)
    return total_B / (step.ranks if is_sharded(step) else 1)


def _parameters_of_rank(step: TrainingStep, counts: sources.ModelCounts) -> float:
    """Return the parameters that one rank has, or shards over the ranks that have the same."""
    parameters = sources.first_stage_parameters(counts, step.pipeline_ranks) / step.tensor_ranks
    if step.features.sharding != "expert":
        return parameters
    return parameters - step.workload.shape.expert_parameters * (1 - 1 / step.expert_ranks)


def _states_16(subject: Subject, counts: sources.ModelCounts) -> float:
    step = subject.step
    _needs_adam(step)
    return sources.zero_states_bytes(_parameters_of_rank(step, counts), _stage(step), step.shard_ranks)


def _states_18(subject: Subject, counts: sources.ModelCounts) -> float:
    step = subject.step
    _needs_adam(step)
    stage = _stage(step)
    if stage > 1:
        raise NotDefinedError("Megatron's estimator spreads the optimizer's states alone (as ZeRO's stage 1)")
    return sources.megatron_states_bytes(
        _parameters_of_rank(step, counts), step.shard_ranks, distributed_optimizer=stage == 1
    )


def _korthikanti(subject: Subject, counts: sources.ModelCounts) -> float:
    """Add the activations of one micro-batch of all layers to ZeRO's states; see `interleaving_penalty`."""
    step = subject.step
    _needs_known_attention(step)
    features, work = step.features, step.workload
    without_scores = features.attention == "sdpa" or features.recompute == "selective"
    kept = "input" if features.recompute == "full" else "no_scores" if without_scores else "all"
    layer_B = sources.korthikanti_layer_bytes(
        work.seq_len,
        work.micro_batch_size,
        counts.hidden_size,
        counts.num_attention_heads,
        kept,
        step.tensor_ranks,
        features.sequence_parallel,
    )
    layers_B = counts.num_hidden_layers * layer_B / step.context_ranks
    return _states_16(subject, counts) + layers_B * sources.interleaving_penalty(
        step.pipeline_ranks, step.stages_per_rank
    )


def _megatron(subject: Subject, counts: sources.ModelCounts) -> float:
    step, features = subject.step, subject.step.features
    _needs_known_attention(step)
    if step.tensor_ranks > 1 and not features.sequence_parallel:
        raise NotDefinedError(
            "this estimator of Megatron's needs sequence parallelism with tensor parallelism"
        )
    if features.recompute == "full" or (features.attention == "explicit" and features.recompute == "none"):
        raise NotDefinedError("Megatron's estimator is for selective recompute or flash attention")
    work = step.workload
    activations_B = sources.megatron_activations_bytes(
        work.seq_len, work.micro_batch_size, counts, step.pipeline_ranks, step.stages_per_rank
    )
    return _states_18(subject, counts) + activations_B / (step.tensor_ranks * step.context_ranks)


def _deepspeed(subject: Subject, counts: sources.ModelCounts) -> float:
    """Apply deepspeed's estimator of the step's own stage; model states only."""
    step = subject.step
    _needs_adam(step)
    stage = _stage(step)
    for is_so, refusal in (
        (step.tensor_ranks > 1, "deepspeed's estimators know no tensor parallelism"),
        (step.pipeline_ranks > 1, "deepspeed's estimators know no pipeline parallelism"),
        (stage == 1, "deepspeed has no estimator for ZeRO stage 1"),
        (stage == 0, "deepspeed's estimators are for ZeRO stages 2 and 3; this step shards by neither"),
    ):
        if is_so:
            raise NotDefinedError(refusal)
    return _by_deepspeed(stage, counts, step.shard_ranks)


def _deepspeed_on_one(stage: int) -> Callable[[Subject, sources.ModelCounts], float]:
    """Apply deepspeed's estimator of `stage` to this model on one GPU, for a step without sharding."""

    def formula(subject: Subject, counts: sources.ModelCounts) -> float:
        step = subject.step
        _needs_adam(step)
        if step.features.sharding != "none" or step.ranks != 1:
            raise NotDefinedError("asked only of a step on one rank; see `deepspeed` for sharded ones")
        return _by_deepspeed(stage, counts, 1)

    return formula


def _by_deepspeed(stage: int, counts: sources.ModelCounts, ranks: int) -> float:
    try:
        return sources.deepspeed_states_bytes(stage, counts.parameters, counts.largest_layer, ranks)
    except ImportError as error:
        raise NotDefinedError(f"deepspeed could not be imported: {error}") from error


METHODS: dict[str, Callable[[Subject, sources.ModelCounts], float]] = {
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
