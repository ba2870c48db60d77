"""Timelines built from a few uniform layers against those of every layer."""

from dataclasses import replace

import pytest
from small_steps import CUDA, GPT, LLAMA, make_step

from harness.instruments.memory.dry_run import layer_repetition
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step

GPT_SHAPED = replace(GPT, gradient_accumulation_steps=2, optimizer_impl="foreach", max_grad_norm=1.0)
MESH = [
    "fsdp2",
    {"tensor_parallel": {"sequence_parallel": True}},
    "mixed_precision",
    "activation_checkpointing",
]

SET_UPS = {
    "momentum, on CUDA": (make_step(replace(LLAMA, optimizer="sgd_momentum"), "full autocast"), CUDA),
    "gradients pile up": (
        build_step(replace(GPT_SHAPED, dp_size=5), [{"fsdp2": {"reduce_every_micro_batch": False}}]),
        Device(),
    ),
    "a mesh of ranks, on CUDA": (
        build_step(replace(LLAMA, dp_size=3, tp_size=2, optimizer_impl="fused", max_grad_norm=1.0), MESH),
        CUDA,
    ),
}
"""Sharded by FSDP1 and FSDP2: test_ranks_of_a_step, test_reserved_memory."""


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


def timeline(*sizes_B):
    place = OpSite("build", "op", ())
    events = [MemoryEvent(index, size_B, place) for index, size_B in enumerate(sizes_B)]
    return Timeline(events, ["parameters"] * len(sizes_B), 0, 1)


def norms_of_layers(layers):
    """Return a timeline whose shapes and bytes count layers."""
    place, stacked = OpSite("clip", "norm", ()), OpSite("clip", "stack", (layers,))
    norms = [MemoryEvent(index, 8, place) for index in range(layers)]
    stack = [MemoryEvent(layers, 4 * layers, stacked)]
    releases = [MemoryEvent(index, -8, stacked) for index in range(layers)]
    events = [*norms, *stack, *releases, MemoryEvent(layers, -4 * layers, place)]
    return Timeline(events, ["temporaries"] * (layers + 1), 0, 512)


@pytest.mark.parametrize(
    ("layers", "trace", "first", "traced"),
    [
        (40, lambda layers: timeline(*[5] * layers), 2, [2, 3, 4]),
        # three layers of 5 bytes, the rest of 7: from n = 4 on the sevens repeat
        (12, lambda layers: timeline(*[5] * min(layers, 3), *[7] * (layers - 3)), 2, [2, 3, 4, 5, 6]),
        (12, lambda layers: timeline(*[5] * min(layers, 3), *[7] * (layers - 3)), 4, [4, 5, 6]),
        (9, lambda layers: timeline(*[5] * 2**layers), 2, None),  # what grows faster is traced
        (300, norms_of_layers, 2, [2, 3, 4]),
    ],
)
def test_what_a_third_depth_does_not_show_is_not_repeated(layers, trace, first, traced):
    depths = []

    def counted(layers):
        depths.append(layers)
        return trace(layers)

    assert layer_repetition.timeline_of(counted, layers, first=first) == trace(layers)
    assert traced in (None, depths)
