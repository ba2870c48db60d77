"""Whether a layout divides its model, sequences, experts and micro-batches; and if not, what would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.dispatch import DEEP_EP
from suites.training.layouts.layout import DEFAULT_MODULES, RECOMPUTE_MODULES, Ints, Layouts, Training

Bools = NDArray[np.bool_]

ALONE: Mapping[str, tuple[str, ...]] = {"composer": ("tp", "pp", "cp", "ep"), "deepspeed": ("pp", "cp")}
"""Parallelism that a program does not have, or that the account does not cover of it."""

NEEDS: Mapping[str, tuple[str, str]] = {
    "moe_act": ("num_experts", "the model has no experts"),
    "moe": ("num_experts", "the model has no experts"),
    "shared_experts": ("shared_intermediate_size", "the model has no shared experts"),
    "mla_up_proj": ("kv_lora_rank", "the model has no latent attention"),
}
"""Fields of a shape without which a module of selective recompute does not exist."""


class DivisionRule(NamedTuple):
    """One condition, as an array over layouts."""

    holds: Bools
    field: str  # of the layouts, which breaks it
    whole: str  # what it has to divide, in words
    size: int = 0  # of that; 0: any divisor of it is no help


def divides(shape: TransformerShape, layouts: Layouts, training: Training) -> Bools:
    """Return for each layout whether all rules hold."""
    result = np.ones_like(layouts.tp, dtype=bool)
    for rule in rules(shape, layouts, training):
        result &= rule.holds
    return result


def refusal(shape: TransformerShape, layout: Layouts, training: Training) -> str | None:
    """Return in one line why a layout is impossible, and which values would divide; None where it is."""
    for rule in rules(shape, layout, training):
        if rule.holds.all():
            continue
        value = int(getattr(layout, rule.field)[0])
        if not rule.size:
            return f"{rule.field}={value}: {rule.whole}"
        allowed = ", ".join(str(one) for one in divisors(rule.size)[:12])
        return f"{rule.field}={value} does not divide {rule.whole}; allowed: {allowed}"
    return None


def refusal_of_training(shape: TransformerShape, training: Training) -> str | None:
    """Return in one line what Megatron-LM's modules or dispatcher cannot do with a model; None where all can.

    core/transformer/transformer_config.py, __post_init__, refuses moe_act without grouped experts.
    """
    for name in training.recompute_modules:
        given = f"recompute_modules={name}"
        if name not in RECOMPUTE_MODULES:
            return f"{given}: unknown; allowed: {', '.join(RECOMPUTE_MODULES)}"
        field, missing = NEEDS.get(name, ("hidden_size", ""))
        if not getattr(shape, field):
            return f"{given}: {missing}"
    if "moe_act" in training.recompute_modules and not training.grouped_experts:
        return "recompute_modules=moe_act: Megatron-LM has it with grouped_experts=true alone"
    if training.program != "megatron" and training.recompute_modules != DEFAULT_MODULES:
        return f"recompute_modules: {training.program} has no such modules; leave it out"
    if training.dispatcher != "alltoall" and training.program != "megatron":
        return f"dispatcher={training.dispatcher}: {training.program} has alltoall here"
    return None


def divisors(whole: int) -> list[int]:
    """Return the divisors of a number in order."""
    small = [one for one in range(1, isqrt(whole) + 1) if whole % one == 0]
    return [*small, *(whole // one for one in reversed(small) if one * one != whole)]


def rules(shape: TransformerShape, layouts: Layouts, training: Training) -> Iterator[DivisionRule]:
    """Yield every condition; a field breaks the first that it can."""
    yield from rules_of_tensor_parallelism(shape, layouts)
    yield from rules_of_pipelines(shape, layouts, training)
    split = layouts.cp * np.where(layouts.cp > 1, 2, 1)  # Megatron-Core: two parts a rank, for balance
    spread = np.where(layouts.sequence_parallel > 0, layouts.tp, 1)
    tokens = training.seq_len
    yield DivisionRule(tokens % split == 0, "cp", f"seq_len={tokens} (in two parts per rank)", tokens // 2)
    yield DivisionRule(tokens % (split * spread) == 0, "tp", f"the tokens of a rank, {tokens} / cp", tokens)
    if training.attention == "unfused":
        # Transformer Engine, pytorch/attention/dot_product_attention/utils.py, get_attention_backend
        yield DivisionRule(layouts.cp == 1, "cp", "explicit attention has no context parallelism")
    yield from rules_of_experts(shape, layouts, training)
    yield from rules_of_sharding(layouts, training)


def rules_of_tensor_parallelism(shape: TransformerShape, layouts: Layouts) -> Iterator[DivisionRule]:
    """Yield the conditions on what tensor-parallel ranks share."""
    heads, groups = shape.num_attention_heads, shape.num_key_value_heads
    yield DivisionRule(heads % layouts.tp == 0, "tp", f"num_attention_heads={heads}", heads)
    yield DivisionRule(groups % layouts.tp == 0, "tp", f"num_key_value_heads={groups}", groups)
    if not all(shape.layers_are_moe):
        width = shape.intermediate_size
        yield DivisionRule(width % layouts.tp == 0, "tp", f"intermediate_size={width}", width)
    able = (layouts.sequence_parallel == 0) | (layouts.tp > 1)
    yield DivisionRule(able, "sequence_parallel", "sequence parallelism needs tp of at least 2")


def rules_of_pipelines(
    shape: TransformerShape, layouts: Layouts, training: Training
) -> Iterator[DivisionRule]:
    """Yield the conditions on pipeline stages and their micro-batches.

    Megatron-Core wants equal stages, where embedding and output layer may count as a layer each.
    """
    layers, stages = shape.num_hidden_layers, layouts.pp * layouts.virtual_stages
    able = (layouts.virtual_stages == 1) | (layouts.pp > 1)
    yield DivisionRule(able, "virtual_stages", "several stages per rank need pp of at least 2")
    given = training.layers_of_stages
    if given:
        right = (stages == len(given)) & (sum(given) == layers)
        what = f"layers_of_stages has {len(given)} stages of {sum(given)} layers, the model {layers} layers"
        yield DivisionRule(right, "pp", what)
    elif training.program == "megatron":
        alone, all_of = equal_stages(layers, layouts.pp), equal_stages(layers, stages)
        yield DivisionRule(all_of | alone, "pp", f"num_hidden_layers={layers} in equal stages", layers)
        each = layers // int(layouts.pp.max())
        what = f"the {each} layers of a rank (num_hidden_layers={layers}, pp={int(layouts.pp.max())})"
        yield DivisionRule(all_of, "virtual_stages", what, max(each, 1))
    most = layers + (2 if training.program == "megatron" else 0)
    yield DivisionRule(stages <= most, "pp", f"more stages than num_hidden_layers={layers}")
    multiple = (layouts.virtual_stages == 1) | (layouts.micro_batches % layouts.pp == 0)
    what = f"interleaved stages need a multiple of pp={int(layouts.pp.max())} micro-batches per step"
    yield DivisionRule(multiple, "micro_batches", what)


def equal_stages(layers: int, stages: Ints) -> Bools:
    """Return whether layers divide into equal stages, where embedding and output layer may be one each.

    Of an odd number of layers nobody makes equal stages; those differ by a layer
    (--pipeline-model-parallel-layout).
    """
    whole: Bools = (layers % stages == 0) | ((layers + 2) % stages == 0) | (layers % 2 == 1)
    return whole


def rules_of_experts(shape: TransformerShape, layouts: Layouts, training: Training) -> Iterator[DivisionRule]:
    """Yield the conditions on expert parallelism."""
    if not shape.num_experts:
        yield DivisionRule(layouts.ep == 1, "ep", "the model has no experts")
        return
    experts, width = shape.num_experts, shape.moe_intermediate_size
    yield DivisionRule(experts % layouts.ep == 0, "ep", f"num_experts={experts}", experts)
    yield DivisionRule(width % layouts.etp == 0, "etp", f"moe_intermediate_size={width}", width)
    ranks = layouts.dp * layouts.cp * layouts.tp
    size = int(ranks.max())
    yield DivisionRule(ranks % (layouts.ep * layouts.etp) == 0, "ep", f"dp × cp × tp / etp = {size}", size)
    if training.dispatcher == "deepep":
        able = np.isin(layouts.ep * layouts.etp, list(DEEP_EP))
        yield DivisionRule(able, "ep", f"DeepEP has ep × etp of {', '.join(map(str, sorted(DEEP_EP)))}")


def rules_of_sharding(layouts: Layouts, training: Training) -> Iterator[DivisionRule]:
    """Yield the conditions on ZeRO's stage."""
    for field in ALONE.get(training.program, ()):
        alone = getattr(layouts, field) == 1
        yield DivisionRule(alone, field, f"{training.program} has no such parallelism here")
    most = {"megatron": 1, "nanotron": 1}.get(training.program, 3)
    yield DivisionRule(layouts.zero <= most, "zero", f"{training.program} has stages 0 to {most}")
    if training.offload != "none":
        least = 3 if training.program == "torchtitan" or training.offload == "parameters" else 1
        able = training.program in ("deepspeed", "torchtitan")
        what = f"offload={training.offload} needs deepspeed with ZeRO-{least}, or torchtitan with ZeRO-3"
        yield DivisionRule((layouts.zero >= least) & able, "zero", what)
    ranks = layouts.dp * layouts.cp
    size = int(ranks.max())
    yield DivisionRule(ranks % layouts.shard_size == 0, "shard_size", f"dp × cp = {size}", size)
