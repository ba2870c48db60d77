"""Timelines built from a few uniform layers against those of every layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_steps import assert_as_measured
from small_steps import CUDA, GPT, HOST, LLAMA, LLAMA_7B, make_step
from torch import nn

from harness.instruments.memory.dry_run import layer_repetition
from harness.instruments.memory.dry_run.layer_repetition import Insertion, NotUniformError, insertions
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.models.model import Transformer, TransformerBlock
from suites.training.techniques import build_step

GPT_SHAPED = replace(GPT, gradient_accumulation_steps=2, optimizer_impl="foreach", max_grad_norm=1.0)
REDUCED_WITH_THE_LAST = {"fsdp2": {"reduce_every_micro_batch": False}}
CHECKPOINTED = ["mixed_precision", "attention", "activation_checkpointing"]

SET_UPS = {
    "plain": (make_step(replace(LLAMA, optimizer_impl="for_loop")), HOST),
    "dropout, two micro-batches": (make_step(GPT_SHAPED, "selective fp32_grads"), HOST),
    "momentum, on CUDA": (make_step(replace(LLAMA, optimizer="sgd_momentum"), "full autocast"), CUDA),
    "7b": (make_step(LLAMA_7B, "flash bf16_grads full"), Device()),  # no operation of that size is run
    "gradients pile up": (
        build_step(replace(GPT_SHAPED, dp_size=5), [REDUCED_WITH_THE_LAST, "mixed_precision"]),
        Device(),
    ),
    "tensor parallel, on CUDA": (
        build_step(replace(LLAMA, tp_size=2, optimizer_impl="fused"), ["tensor_parallel", *CHECKPOINTED]),
        CUDA,
    ),
    "a mesh of ranks, on CUDA": (
        build_step(
            replace(LLAMA, dp_size=3, tp_size=2, optimizer_impl="fused", max_grad_norm=1.0),
            ["fsdp2", {"tensor_parallel": {"sequence_parallel": True}}, *CHECKPOINTED],
        ),
        CUDA,
    ),
    "shared sequences, on CUDA": (
        build_step(replace(LLAMA, dp_size=2, cp_size=2), ["fsdp2", "context_parallel", *CHECKPOINTED]),
        CUDA,
    ),
}
"""Sharded by FSDP1 and FSDP2: test_fsdp1, test_fsdp2, test_fsdp2_resharding, test_reserved_memory."""


@pytest.mark.parametrize("name", SET_UPS)
def test_built_as_traced(monkeypatch, name):
    """And of few layers: else full traces would be compared with themselves."""
    step, device = SET_UPS[name]
    step = replace(step, workload=replace(step.workload, num_hidden_layers=6))
    full = dry_run(step, device, full=True)
    depths = []
    trace = training_dry_run.trace

    def counted(step, device, layers, **first_step):
        depths.append(layers)
        return trace(step, device, layers, **first_step)

    monkeypatch.setattr(training_dry_run, "trace", counted)
    assert dry_run(step, device) == full
    assert depths == ([3, 4, 5] if step.ranks > 1 else [2, 3, 4])


def growing(step, num_hidden_layers):
    """Return a step in which each layer's MLP is wider than the last one's."""
    model = Transformer(step.workload.shape, step.attention)
    model.blocks = nn.ModuleList(
        TransformerBlock(replace(step.workload.shape, intermediate_size=64 * (1 + index)), step.attention)
        for index in range(num_hidden_layers)
    )
    return model


def test_layers_that_are_not_alike_are_traced_one_by_one():
    workload = replace(LLAMA, num_hidden_layers=5, optimizer="sgd_momentum")
    step = replace(make_step(workload), make_model=growing)
    found = dry_run(step, HOST)
    assert found == dry_run(step, HOST, full=True)
    assert_as_measured(step, found)


def timeline(*sizes_B):
    """Return a timeline of allocations that are never released."""
    place = OpSite("build", "op", ())
    events = [MemoryEvent(index, size_B, place) for index, size_B in enumerate(sizes_B)]
    return Timeline(events, ["parameters"] * len(sizes_B), 0, 1)


def test_what_a_third_depth_does_not_show_is_not_repeated():
    """Three layers of 5 bytes, the rest of 7."""
    traced = []

    def trace(layers):
        traced.append(layers)
        return timeline(*([5] * min(layers, 3)), *([7] * (layers - 3)))

    assert layer_repetition.timeline_of(lambda layers: timeline(*[5] * layers), 40) == timeline(*[5] * 40)
    built = layer_repetition.timeline_of(trace, 12)
    assert built == timeline(*[5] * 3, *[7] * 9)
    assert traced == [2, 3, 4, 5, 6]  # from n = 4 on the sevens repeat
    traced.clear()
    assert layer_repetition.timeline_of(trace, 12, first=4) == built
    assert traced == [4, 5, 6]


def test_what_grows_twice_as_fast_is_traced():
    def trace(layers):
        return timeline(*[5] * 2**layers)

    assert layer_repetition.timeline_of(trace, 9) == trace(9)


def test_shapes_and_bytes_that_count_layers_are_linear():
    def trace(layers):
        place, stacked = OpSite("clip", "norm", ()), OpSite("clip", "stack", (layers,))
        norms = [MemoryEvent(index, 8, place) for index in range(layers)]
        stack = [MemoryEvent(layers, 4 * layers, stacked)]
        releases = [MemoryEvent(index, -8, stacked) for index in range(layers)]
        events = [*norms, *stack, *releases, MemoryEvent(layers, -4 * layers, place)]
        return Timeline(events, ["temporaries"] * (layers + 1), 0, 512)

    assert layer_repetition.timeline_of(trace, 300) == trace(300)


def test_repeated_stretches_are_found():
    assert insertions([1, 2, 3, 2, 3, 4], [1, 2, 3, 2, 3, 2, 3, 4]) == [Insertion(5, 5, 2)]
    left = [0, 1, 2, 1, 2, 9, 3, 3, 8]
    right = [0, 1, 2, 1, 2, 1, 2, 9, 3, 3, 3, 8]
    assert insertions(left, right) == [Insertion(5, 5, 2), Insertion(8, 10, 1)]
    for other in ([1, 2, 3], [1, 4, 2, 3]):
        with pytest.raises(NotUniformError):
            insertions([1, 2], other)
