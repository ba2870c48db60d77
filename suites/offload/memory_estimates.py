"""Estimates of a variant's device memory, and of the largest model in a budget; the suite runs both, too.

Closed formulas, deepspeed's estimators, and `fake_step`: a step on fake tensors as ranks on this host run it,
by `training.dry_run`. Formulas are as their sources print them, also where a variant breaks their
assumptions; a note then says so.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial

import torch

from harness.instruments.memory.dry_run.layer_repetition import timeline_of
from harness.instruments.memory.memory_timeline import Timeline
from harness.records import Unavailable
from suites.offload.subject import DEVICE, MemoryPlacement, Subject
from suites.offload.workload import Workload
from suites.training.dry_run.dry_run import Device, among_ranks, is_sharded, trace
from suites.training.dry_run.estimates import (
    MIXED,
    ModelStates,
    deepspeed_states_bytes,
    korthikanti_layer_bytes,
    largest_operator_bytes,
    zero_states_bytes,
)
from suites.training.step import TrainingStep
from suites.training.techniques import build_step

HOST_WITH_GLOO = Device("host", measured=True, gloo=True)
"""This host's operations, with their temporary memory and gloo's."""


def fake_step_B(subject: Subject) -> float:
    """Return peak bytes of a steady step on rank 0, which has the largest shard; raises `Unavailable`.

    Depths of one variant share the traces of shallow models.
    """
    if (reason := why_not(subject)) is not None:
        raise Unavailable(reason)
    step = subject.step
    ranks = step.ranks if is_sharded(step) else 1
    timeline = timeline_of(partial(traced, step), subject.workload.num_hidden_layers, ranks)
    return float(timeline.peak().total_B)


def why_not(subject: Subject) -> str | None:
    """Return why such a step has no dry run; None where it has one."""
    if subject.managed is not None:
        return "fake tensors have one memory tier; managed memory has two"
    if subject.placement.engine not in ("ddp", "fsdp2"):
        return f"the engine {subject.placement.engine} has no dry run on several ranks here"
    if subject.step.no_dry_run is not None:
        return subject.step.no_dry_run
    if torch.cuda.is_available():
        return "the operations of this dry run are the CPU's, and a GPU's hold other bytes; use suite=memory"
    return None


def traced(step: TrainingStep, num_hidden_layers: int) -> Timeline:
    """Return the timeline of a step with that many layers."""
    workload = replace(step.given, num_hidden_layers=num_hidden_layers)
    return _trace(json.dumps(build_step(workload, step.techniques, step.seed).described))


@lru_cache(maxsize=16)
def _trace(described: str) -> Timeline:
    step = build_step(**json.loads(described))
    with among_ranks(step):
        return trace(step, HOST_WITH_GLOO)


MemoryFormula = Callable[[Subject], float]
"""Peak bytes of one rank's device; raises `Unavailable` with the reason where there is no value."""


ANY_DEPTH = 2**20
"""Layers. Where so many fit, the device bounds nothing."""


def sizes_B(workload: Workload, placement: MemoryPlacement) -> ModelStates:
    """Return the bytes per parameter that the variant's engine allocates.

    torch trains fp32 parameters (autocast, or FSDP2's own casts): 4, 4 and two moments of 4. deepspeed has
    ZeRO's 16-bit ones. In fp32 it keeps a copy of what it updates all the same, but for stage 3 on the device
    (deepspeed 0.19, stage_1_and_2.py and stage3.py). The update on the host has that copy too.
    """
    own = placement.engine == "deepspeed" and placement.stage == 3 and placement.optimizer == DEVICE
    if placement.engine in ("ddp", "fsdp2", "managed") or (workload.precision == "fp32" and own):
        return ModelStates(4, 4, 8)
    return ModelStates(4, 4, 12) if workload.precision == "fp32" else MIXED


def on_device(placement: MemoryPlacement) -> ModelStates:
    """Return the share of each part that stays on the device.

    Gradients go where the states are that they update, each as soon as it is reduced; but stage 1, which
    spreads no gradients, holds all of them until the backward pass ends. `ratio` is Twin-Flow's.
    """
    if placement.engine == "host_update":
        return ModelStates(1, 0, 0)
    if placement.engine == "managed":
        share = min(placement.resident or 1.0, 1.0)
        return ModelStates(share, share, share)
    kept = 1.0 if placement.optimizer == DEVICE else 1 - placement.ratio
    return ModelStates(
        1 if placement.parameters == DEVICE else 0, 1 if stage_of(placement) == 1 else kept, kept
    )


def stage_of(placement: MemoryPlacement) -> int:
    """Return ZeRO's stage: FSDP2 shards as stage 3 does, engines other than deepspeed's shard nothing."""
    return 3 if placement.engine == "fsdp2" else placement.stage


def zero_formula_B(workload: Workload, placement: MemoryPlacement) -> float:
    """Return the model states by ZeRO's formulas; with stage 3 offloaded, plus the largest operator."""
    shape = workload.shape
    stage, sizes, kept = stage_of(placement), sizes_B(workload, placement), on_device(placement)
    states_B = zero_states_bytes(shape.parameters, stage, workload.dp_size, sizes, kept)
    gathered = stage == 3 and placement.optimizer != DEVICE
    widest = max(shape.intermediate_size, shape.vocab_size, shape.hidden_size)
    working_B = largest_operator_bytes(shape.hidden_size, widest, element_B(workload))
    return states_B + (working_B if gathered else 0)


def element_B(workload: Workload) -> int:
    """Return the bytes of one element of a matrix product."""
    return 2 if workload.precision == "bf16" else 4


def with_activations_B(workload: Workload, placement: MemoryPlacement) -> float:
    """Return `zero_formula_B` plus the activations of one batch and the temporaries of the loss.

    A layer keeps what `korthikanti_layer_bytes` returns for attention that stores no scores; in fp32 twice
    that. Recomputed, all inputs are kept and one layer in full; on the host, one layer stays in full, or two
    where the next is fetched ahead. The loss holds three times tokens x vocab in fp32: logarithms of
    probabilities, their gradient, and that of the logits.
    """
    tokens = workload.micro_batch_size * workload.seq_len
    sizes = workload.seq_len, workload.micro_batch_size, workload.hidden_size, workload.num_attention_heads
    layer_B, input_B = (
        element_B(workload) / 2 * korthikanti_layer_bytes(*sizes, kept) for kept in ("no_scores", "input")
    )
    kept_B = {
        "kept": workload.num_hidden_layers * layer_B,
        "recomputed": workload.num_hidden_layers * input_B + layer_B,
        "offloaded": layer_B,
        "offloaded_ahead": min(workload.num_hidden_layers, 2) * layer_B,
    }
    loss_B = 3 * 4 * tokens * workload.vocab_size
    return zero_formula_B(workload, placement) + kept_B[placement.activations] + loss_B


def deepspeed_B(workload: Workload, placement: MemoryPlacement) -> float:
    """Return deepspeed's own estimate for its stage 2 or 3, with its switches for offload.

    Called with counts, for one node; its `*_all_live` forms would need the model itself.
    """
    if placement.engine != "deepspeed":
        raise Unavailable("deepspeed's estimators are for its own engine")
    if placement.stage not in (2, 3):
        raise Unavailable(f"deepspeed has no estimator for ZeRO stage {placement.stage}")
    if placement.optimizer != DEVICE and placement.ratio != 1:
        raise Unavailable("deepspeed's estimators support all states on the host or none, not a share")
    shape, offload = workload.shape, placement.optimizer != DEVICE
    widest = max(shape.intermediate_size, shape.vocab_size, shape.hidden_size)
    counts = shape.parameters, workload.hidden_size * widest, workload.dp_size
    try:
        return deepspeed_states_bytes(placement.stage, *counts, offload, placement.parameters != DEVICE)
    except ImportError as error:
        raise Unavailable(f"deepspeed could not be imported: {error}") from error


METHODS: dict[str, MemoryFormula] = {
    "ZeRO formula": lambda subject: zero_formula_B(subject.workload, subject.placement),
    "deepspeed estimator": lambda subject: deepspeed_B(subject.workload, subject.placement),
    "formula + activations": lambda subject: with_activations_B(subject.workload, subject.placement),
    "fake_step": fake_step_B,
}
"""Estimates by name, the coarsest first."""


def estimates_B(subject: Subject) -> Iterator[tuple[str, float | None, str]]:
    """Yield (method, bytes of one rank's device at a steady step's peak, note); None: the note says why."""
    for method, estimate in METHODS.items():
        try:
            yield method, estimate(subject), "; ".join(_notes(method, subject.workload, subject.placement))
        except Unavailable as reason:
            yield method, None, str(reason)


def _notes(method: str, workload: Workload, placement: MemoryPlacement) -> Iterator[str]:
    """Yield what the method leaves out, and which of its assumptions the variant breaks."""
    if method in ("ZeRO formula", "deepspeed estimator"):
        yield "model states alone, without activations or buffers"
    if method == "deepspeed estimator" and workload.precision == "fp32":
        yield "it is for 16-bit weights, and this variant trains fp32 ones"
    if method == "formula + activations" and workload.intermediate_size != 4 * workload.hidden_size:
        ours, theirs = workload.intermediate_size, 4 * workload.hidden_size
        yield f"the formula's MLP is {theirs} wide, this model's {ours}"
    if method == "formula + activations" and workload.precision == "fp32":
        yield "fp32 counted as twice 16 bits"
    if method == "fake_step" and placement.engine == "ddp":
        yield "the model without DDP, whose buckets are the gradients"


def largest(subject: Subject, budget_B: float, estimate: MemoryFormula) -> int:
    """Return the most layers whose estimated bytes are within the budget; 0 where one layer's are not.

    Bytes must not fall as layers are added. Raises `Unavailable` without a value, or where any depth fits.
    """

    def bytes_of(num_hidden_layers: int) -> float:
        return estimate(subject.at_depth(num_hidden_layers))

    end = 1
    while bytes_of(end) <= budget_B:
        end *= 2
        if end >= ANY_DEPTH:
            raise Unavailable("by this method the device's memory does not bound the model's depth")
    return bisect_right(range(1, end), budget_B, key=bytes_of)
