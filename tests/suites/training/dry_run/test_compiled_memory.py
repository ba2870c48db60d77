"""The dry run of compiled steps against the allocator's own events of steps that Inductor really compiled."""

import re
from dataclasses import replace

import pytest
import torch
from random_steps import ALLOWED, assert_as_measured
from small_steps import CUDA, GPT, HOST

from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged
from harness.instruments.memory.dry_run.substitutes import unbuilt_kernels
from harness.records import Note, Reading, Unavailable
from suites.memory import suite as memory
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import among_ranks, dry_run
from suites.training.techniques import build_step

FEW_KERNELS = replace(
    GPT, num_hidden_layers=1, vocab_size=50, seq_len=128, micro_batch_size=4, dp_size=2, dropout=0.0
)
"""Logits are small next to what layers keep and take."""

BLOCKS = {"compile": {"scope": "blocks"}}
PER_OPERATION = {"activation_checkpointing": {"mode": "per_op"}}


@pytest.fixture(autouse=True)
def forget_compiled_code():
    yield
    torch._dynamo.reset()


def test_as_measured():
    recipe = ["fsdp2", "mixed_precision", "attention", PER_OPERATION]
    step = build_step(FEW_KERNELS, [BLOCKS, *recipe])
    found = dry_run(step, HOST)
    lines = {one.place.line for one in found.timeline.events if one.place.operation == "aten.mm.out"}
    ours = {"training", "activations", "techniques", "models"}  # generated code has no lines
    assert {line.partition("/")[0] for line in lines} <= ours
    eager_B = dry_run(build_step(FEW_KERNELS, recipe), HOST).peak_B
    assert abs(found.peak_B / eager_B - 1) > 10 * ALLOWED
    with among_ranks(step):
        assert_as_measured(step, found)


def test_any_number_of_shapes_and_real_kernels_afterwards():
    function = torch.compile(lambda x: (x * 2).sin().cos(), dynamic=False)
    log = StorageLog()
    with logged(log), unbuilt_kernels():
        for size in range(100, 112):
            before = len(log.ledger.events)
            kept = function(torch.empty(size))
            made = [one.delta_B for one in log.ledger.events[before:] if one.delta_B > 0]
            assert made == [4 * size, 4 * size]  # the argument, and one result of three operations
            del kept
    x = torch.arange(100.0)
    assert torch.allclose(function(x), (x * 2).sin().cos())


def test_modes_whose_buffers_are_not_known_have_a_reason():
    for mode, why in (("reduce-overhead", "private pool"), ("max-autotune-no-cudagraphs", "autotuning")):
        with pytest.raises(Unavailable, match=why):
            dry_run(build_step(FEW_KERNELS, [{"compile": {"mode": mode}}]), CUDA)


def test_a_note_has_the_peak_without_fusion():
    """The graphs of the same step run operation by operation: no fusion takes more."""
    step = build_step(FEW_KERNELS, [BLOCKS, "attention", "activation_checkpointing"])
    taken = list(memory.simulated(Subject(step, 80e9, simulated_device="cuda"), memory.peak_of_rank))
    fused_B, *_ = (one.value for one in taken if isinstance(one, Reading))
    (text,) = (one.text for one in taken if isinstance(one, Note) and "Without any fusion" in one.text)
    assert fused_B + 5e5 < float(re.search(r"([\d.e-]+) GB", text)[1]) * 1e9
