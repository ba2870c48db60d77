"""Every layout of a model on a number of GPUs, which of them fit, and up to which micro-batch.

First whether a layout divides its model, sequences, experts and micro-batches; and if not, what would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer import TransformerShape
from harness.question import ProgramName, Question
from suites.training.layouts.account import peak_of_rank, worst_peak
from suites.training.layouts.dispatch import DEEP_EP, deep_ep_B
from suites.training.layouts.layout import (
    DEFAULT_MODULES,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    Floats,
    Ints,
    Layouts,
    Training,
)
from suites.training.layouts.room import (
    EXPANDABLE,
    FRAGMENTED,
    WITHOUT_RETRIES,
    outside_allocator_B,
    room_B,
)
from suites.training.layouts.states import FSDP
from suites.training.workload import Architecture

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
    able = {"megatron": ("alltoall", "allgather", "deepep"), "torchtitan": ("alltoall", "deepep")}
    known = able.get(training.program, ("alltoall",))
    if training.dispatcher not in known:
        return f"dispatcher={training.dispatcher}: {training.program} has {' and '.join(known)} here"
    return None


def divisors(whole: int) -> list[int]:
    """Return the divisors of a number in order."""
    small = [one for one in range(1, isqrt(whole) + 1) if whole % one == 0]
    return [*small, *(whole // one for one in reversed(small) if one * one != whole)]


def rules(shape: TransformerShape, layouts: Layouts, training: Training) -> Iterator[DivisionRule]:
    """Yield every condition; a field breaks the first that it can."""
    yield from rules_of_tensor_parallelism(shape, layouts, training)
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


def rules_of_tensor_parallelism(
    shape: TransformerShape, layouts: Layouts, training: Training
) -> Iterator[DivisionRule]:
    """Yield the conditions on what tensor-parallel ranks share.

    Of Megatron-LM several ranks may have the same key-value head (core/transformer/attention.py).
    """
    heads, groups = shape.num_attention_heads, shape.num_key_value_heads
    repeated = (layouts.tp % groups == 0) & (training.program == "megatron")
    yield DivisionRule(heads % layouts.tp == 0, "tp", f"num_attention_heads={heads}", heads)
    yield DivisionRule((groups % layouts.tp == 0) | repeated, "tp", f"num_key_value_heads={groups}", groups)
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
    # Megatron-LM's groups of micro-batches, core/pipeline_parallel/schedules.py; the last may be smaller
    group = training.micro_batch_group or layouts.pp
    rest = layouts.micro_batches % group
    able = (rest == 0) | (rest >= layouts.pp)
    able = (layouts.virtual_stages == 1) | (able & (layouts.micro_batches >= group) & (group >= layouts.pp))
    pp = int(layouts.pp.max())
    what = f"interleaved stages need a multiple of pp={pp} micro-batches per step"
    if training.micro_batch_group:
        what = f"groups of {group} micro-batches need at least pp={pp} in each, the last one too"
    yield DivisionRule(able, "micro_batches", what)


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
    most = {"nanotron": 1}.get(training.program, 3)  # 2 and 3 of Megatron-FSDP
    yield DivisionRule(layouts.zero <= most, "zero", f"{training.program} has stages 0 to {most}")
    if training.offload != "none":
        least = 3 if training.program in FSDP or training.offload == "parameters" else 1
        able = training.program in ("deepspeed", *FSDP)
        what = f"offload={training.offload} needs deepspeed with ZeRO-{least}, or FSDP (torchtitan, composer)"
        what += f" with ZeRO-3, not {training.program}" if not able else " with ZeRO-3"
        yield DivisionRule((layouts.zero >= least) & able, "zero", what)
    ranks = layouts.dp * layouts.cp
    size = int(ranks.max())
    yield DivisionRule(ranks % layouts.shard_size == 0, "shard_size", f"dp × cp = {size}", size)


MOST_SEQUENCES = 256
"""The largest micro-batch that is searched."""

STAGES: Mapping[ProgramName, tuple[int, ...]] = {
    "megatron": (0, 1),
    "nanotron": (0, 1),
    "deepspeed": (1, 2, 3),
    "torchtitan": (3,),
    "composer": (3,),
}
"""ZeRO's stages that are tried, by program."""

VIRTUAL_STAGES = (1, 2, 4, 8)
"""Stages per pipeline rank that are tried."""

LONG_TOKENS = 8192
"""Context parallelism leaves a rank at least half as many tokens of a sequence."""


class LayoutGpus(NamedTuple):
    """The GPUs of a question."""

    gpus: int
    gpus_per_node: int = 8
    usable_B: float = 85.0e9
    architecture: Architecture = "hopper"


class LayoutSubject(NamedTuple):
    """A question about layouts, checked."""

    question: Question  # with its devices and their memory, and with the batch where it is known
    shape: TransformerShape
    training: Training
    cluster: LayoutGpus
    layout: Layouts  # one; of a search, the plainest

    @property
    def batch(self) -> int | None:
        """Return the sequences of an update; None where they are not known."""
        return self.question.global_batch_size

    def tokens(self, layouts: Layouts) -> Floats:
        """Return the tokens of the batch, or of one step of each layout where no batch is known."""
        of_step = layouts.dp * layouts.micro_batch_size * layouts.micro_batches
        sequences = of_step if self.batch is None else np.full_like(of_step, self.batch)
        return np.asarray(sequences * self.training.seq_len, dtype=float)


class Fits(NamedTuple):
    """Whether layouts fit, as arrays."""

    needed: Floats  # bytes: the allocated peak and what fragmentation adds
    room: Floats
    fits: NDArray[np.bool_]
    retries: NDArray[np.bool_]  # it fits, and the allocator may free its cache over and over


def fits(subject: LayoutSubject, layouts: Layouts) -> Fits:
    """Return whether each layout fits the subject's GPUs."""
    _, shape, training, cluster, _ = subject
    peak = worst_peak(shape, layouts, training, cluster.architecture).total_B
    room = room_B(layouts, cluster.usable_B) - deep_ep_B(shape, layouts, training)
    needed = needed_B(peak, training)
    fit = needed <= room
    return Fits(needed, room, fit, fit & (peak * WITHOUT_RETRIES > room))


def needed_B(peak_B: Floats, training: Training) -> Floats:
    """Return what the allocator needs for a peak of so many bytes, with its fragmentation.

    nanotron's account was compared with reserved bytes, so that nothing is added.
    """
    added = EXPANDABLE if training.expandable_segments else FRAGMENTED
    return peak_B * (1.0 if training.program == "nanotron" else added)


def memory_kinds(subject: LayoutSubject) -> dict[str, Floats]:
    """Return the bytes at the peak of each pipeline rank of the layout by kind, as arrays over ranks.

    The worst rank's, without those outside of the allocator, are what `fits` says that it needs.
    """
    _, shape, training, cluster, layout = subject
    ranks = np.arange(int(layout.pp[0]))
    each = layout.only(np.zeros_like(ranks))
    peak = peak_of_rank(shape, each, training, ranks, cluster.architecture)
    _, *kinds = peak._fields
    return {
        **{name: getattr(peak, name) for name in kinds},
        "fragmentation": needed_B(peak.total_B, training) - peak.total_B,
        "outside": outside_allocator_B(each),
    }


def candidates(subject: LayoutSubject) -> Layouts:
    """Return every layout that divides the model and the GPUs, with one sequence per micro-batch.

    Tensor-parallel ranks share a node. Without a batch, a pipeline has four micro-batches per stage.
    """
    layouts = Layouts.of(list(_rows(subject)))
    return layouts.only(divides(subject.shape, layouts, subject.training))


def _rows(subject: LayoutSubject) -> Iterator[dict[str, int]]:
    _, shape, training, cluster, _ = subject
    batch = subject.batch
    zeros = STAGES[training.program]
    sizes = [one for one in divisors(cluster.gpus) if one <= cluster.gpus_per_node]
    for tp, pp in product(sizes, divisors(cluster.gpus)):
        if cluster.gpus % (tp * pp) or pp > shape.num_hidden_layers + 2:
            continue
        for cp in _context_sizes(training, cluster.gpus // (tp * pp)):
            dp = cluster.gpus // (tp * pp * cp)
            if batch is not None and batch % dp:
                continue
            micro_batches = 4 * pp if batch is None else batch // dp
            for (ep, etp), virtual, zero, recompute in product(
                _expert_sizes(shape, training, dp * cp * tp, tp),
                VIRTUAL_STAGES if pp > 1 else (1,),
                zeros if dp * cp > 1 else zeros[:1],
                range(len(RECOMPUTES)),
            ):
                yield {
                    "tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep, "etp": etp, "virtual_stages": virtual,
                    "zero": zero, "recompute": recompute, "micro_batches": micro_batches,
                }  # fmt: skip


def _context_sizes(training: Training, ranks: int) -> list[int]:
    most = max(1, 2 * training.seq_len // LONG_TOKENS)
    return [one for one in divisors(ranks) if one <= most and one & (one - 1) == 0]


def _expert_sizes(shape: TransformerShape, training: Training, ranks: int, tp: int) -> list[tuple[int, int]]:
    if not shape.num_experts:
        return [(1, 1)]
    within = sorted({1, tp}) if training.program == "megatron" else [1]
    return [(ep, etp) for ep in divisors(shape.num_experts) for etp in within if ranks % (ep * etp) == 0]


def with_micro_batch(layouts: Layouts, size: Ints, global_batch_size: int | None) -> Layouts:
    """Return the layouts with other micro-batches; of a given batch there are then fewer."""
    count = layouts.micro_batches
    if global_batch_size is not None:
        count = np.maximum(global_batch_size // (layouts.dp * size), 1)
    return layouts._replace(micro_batch_size=size, micro_batches=count)


def largest_micro_batch(subject: LayoutSubject, layouts: Layouts) -> Ints:
    """Return the largest micro-batch with which each layout fits, 0 where none does; by halving."""
    most, batch = np.full_like(layouts.dp, MOST_SEQUENCES), subject.batch
    if batch is not None:
        most = np.minimum(most, batch // layouts.dp)
    low, high = np.zeros_like(most), most + 1
    while (high - low > 1).any():
        middle = np.maximum((low + high) // 2, 1)
        tried = with_micro_batch(layouts, middle, batch)
        good = fits(subject, tried).fits & (middle < high)
        low, high = np.where(good, middle, low), np.where(good, high, np.minimum(high, middle))
    if batch is None:
        return low
    return np.array(
        [
            max((one for one in divisors(batch // int(dp)) if one <= most), default=0)
            for dp, most in zip(layouts.dp, low, strict=True)
        ]
    )


def dominated(layouts: Layouts, largest: Ints) -> NDArray[np.bool_]:
    """Return which layouts recompute more, or shard more, than another that fits without it."""
    seen: set[tuple[int, ...]] = set()
    result = np.zeros_like(largest, dtype=bool)
    keys = np.stack([layouts.tp, layouts.pp, layouts.cp, layouts.ep, layouts.virtual_stages], axis=1)
    for index in np.lexsort((layouts.zero, layouts.recompute)):
        key = tuple(keys[index].tolist())
        result[index] = key in seen
        if largest[index]:
            seen.add(key)
    return result


def title(layout: Layouts, index: int = 0) -> str:
    """Return a layout in words, as tp 8 × pp 4 × dp 16, ZeRO-1, full recompute."""
    value = layout.row(index)
    sizes = [f"{name} {value[name]}" for name in ("dp", "tp", "pp", "cp") if value[name] > 1]
    words = [" × ".join(sizes) or "one GPU"]
    if value["ep"] > 1:
        words.append(f"ep {value['ep']}" + (f" × etp {value['etp']}" if value["etp"] > 1 else ""))
    if value["virtual_stages"] > 1:
        words.append(f"{value['virtual_stages']} stages per rank")
    if value["zero"]:
        within = value["shard_size"]
        hybrid = f" within {within} ranks" if within < value["dp"] * value["cp"] else ""
        words.append(f"ZeRO-{value['zero']}{hybrid}")
    if value["recompute"]:
        words.append(f"{RECOMPUTES[value['recompute']]} recompute")
    return ", ".join(words)
