"""CUDA's program in a dry run: when it is taken, and what it keeps."""

from dataclasses import replace
from itertools import groupby

import pytest
from small_steps import CUDA, GPT, HOST, LLAMA, LLAMA_7B, make_step

from harness.config.code_fingerprint import ROOT
from harness.instruments.memory.caching_allocator import replay
from harness.records import measurement
from harness.sweep.store import read_records
from suites.memory import suite as memory
from suites.training.dry_run.dry_run import Device, dry_run, trace
from suites.training.techniques import build_step

MiB = 1024**2


def activations_at_the_loss(step, num_hidden_layers: int) -> int:
    timeline = trace(step, CUDA, num_hidden_layers)
    at = max(index for index, one in enumerate(timeline.events) if "nll_loss_forward" in one.place.operation)
    until = zip(timeline.events[:at], timeline.sizes_B(), strict=False)
    return sum(size_B for one, size_B in until if timeline.kinds[one.storage] == "activations")


def test_cuda_keeps_the_activations_of_a_layer_that_korthikanti_count():
    """arXiv 2205.05198, equation 1: s·b·h·(34 + 5·a·s/h) bytes per layer, in bf16 with dropout."""
    b, s, h, a = 4, 256, 512, 8
    heads = {"num_attention_heads": a, "num_key_value_heads": a}
    sizes = {"hidden_size": h, "intermediate_size": 4 * h, "micro_batch_size": b, "seq_len": s}
    step = make_step(GPT, "bf16_grads", **heads, **sizes)
    a_layer = activations_at_the_loss(step, 2) - activations_at_the_loss(step, 1)
    assert a_layer == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=5e-3)
    flash = make_step(step.workload, "bf16_grads flash")
    assert activations_at_the_loss(flash, 2) - activations_at_the_loss(flash, 1) == pytest.approx(
        s * b * h * 34 + 4 * b * a * s, rel=3e-2
    )


def test_fsdp2_of_early_2024_allocates_what_it_reduces_on_the_reductions_stream():
    """The input in fp32 takes as many bytes there as the gathered bf16 layer twice. What the streams' pools
    hold is not shared, so one pool for all would need less."""
    step = build_step(replace(LLAMA_7B, num_hidden_layers=2, dp_size=8), ["fsdp2", "mixed_precision"])
    largest_B = []
    for apart in (False, True):
        found = dry_run(step, CUDA._replace(fsdp2_copies_on_own_stream=apart))
        events = found.timeline.events
        of_stream = [[one.delta_B for one in events if one.stream == stream] for stream in (1, 2)]
        largest_B.append([max(those) for those in of_stream])
    (gathered_B, output_B), (same_B, input_B) = largest_B
    assert gathered_B == same_B
    assert input_B == 8 * output_B == 2 * gathered_B
    requests = list(found.timeline.requests())
    together = replay((storage, size_B, 0) for storage, size_B, _ in requests)
    assert replay(requests).peak_B > together.peak_B


@pytest.mark.parametrize(("architecture", "workspace_B"), [("hopper", 32 * MiB), ("ampere", 8519680)])
def test_the_first_step_on_cuda_is_a_full_one_after_two_workspaces_of_cublas(architecture, workspace_B):
    """Its passes decide which segments the allocator has when the optimizer's states come."""
    step = make_step(LLAMA, "flash", num_hidden_layers=1)
    found = dry_run(step, Device("cuda", architecture=architecture))
    events = found.timeline.events
    assert [event.delta_B for event in events[:2]] == [workspace_B, workspace_B]
    phases = [phase for phase, _ in groupby(event.place.phase for event in events)]
    passes = ["forward 0", "backward 0", "optimizer", "zero_grad"]
    assert phases == ["build", *passes, *passes]
    assert found.reserved_B > found.peak_B
    assert found.reserved_B % (2 * MiB) == 0
    assert dry_run(step, HOST).reserved_B is None


@pytest.mark.parametrize(
    ("workload", "variant"), [("gpt_5m", "mixed_checkpointed"), ("llama_12m", "baseline")]
)
def test_blocks_in_use_are_those_of_an_h100(workload, variant):
    """With a bias and without; where layers are recomputed, autograd's thread adds a bias, too."""
    (cell,) = (
        one
        for one in read_records(ROOT / "results/reference/memory_h100")
        if (one.cell.workload, one.cell.optimization) == (workload, variant)
    )
    measured_B = max(measurement(cell, "peak_memory", "measured").samples)
    config = cell.cell.config
    subject = memory.build({**config["workload"], "simulated_device": "cuda"}, 0)
    subject = memory.apply_techniques(subject, config.get("techniques", ()))
    assert memory.peak_of_rank(subject).allocated_B == pytest.approx(measured_B, rel=3e-4)
