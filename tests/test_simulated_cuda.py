"""CUDA's program in a dry run: when it is taken, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from small_steps import CUDA, GPT, LLAMA, make_step

from harness.records import Note, Reading
from suites import memory
from suites.memory.subject import Subject
from suites.training.dry_run import trace

pytestmark = pytest.mark.usefixtures("frozen")


def a_subject(step, device="host"):
    return Subject(step, device_memory_B=80e9, measurable=True, simulated_device=device)


def test_on_a_host_with_cuda_its_operations_are_run(monkeypatch):
    """`measured` runs there, so the dry run of "host" must be the dry run of "cuda"."""
    step = make_step(LLAMA, "flash", num_hidden_layers=1)
    here, there = memory.peak_of_rank(a_subject(step)), memory.peak_of_rank(a_subject(step, "cuda"))
    assert here.peak_B != there.peak_B
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert memory.peak_of_rank(a_subject(step)) == there
    assert memory.conditions(a_subject(step))["device"] == "cuda"


@pytest.mark.parametrize(("device", "compared"), [("host", True), ("cuda", False)])
def test_cuda_runs_are_not_compared_with_a_cpu(monkeypatch, device, compared):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = list(memory.sample(a_subject(make_step(LLAMA, num_hidden_layers=1), device)))
    assert any(isinstance(one, Reading) and one.method == "measured" for one in said)
    assert any(isinstance(one, Reading) and one.metric == "relative_error" for one in said) == compared
    assert any(isinstance(one, Note) and one.text.startswith("relative_error: ") for one in said) != compared


def activations_at_the_loss(step, num_hidden_layers: int) -> int:
    timeline = trace(step, CUDA, num_hidden_layers)
    at = max(index for index, one in enumerate(timeline.events) if "nll_loss_forward" in one.place.operation)
    until = zip(timeline.events[:at], timeline.sizes_B(), strict=False)
    return sum(size_B for one, size_B in until if timeline.kinds[one.storage] == "activations")


def test_cuda_keeps_the_activations_of_a_layer_that_korthikanti_count():
    """arXiv 2205.05198, equation 1: s·b·h·(34 + 5·a·s/h) bytes a layer, in bf16 with dropout."""
    b, s, h, a = 4, 256, 512, 8
    step = make_step(
        GPT,
        "bf16_grads",
        hidden_size=h,
        num_attention_heads=a,
        num_key_value_heads=a,
        intermediate_size=4 * h,
        micro_batch_size=b,
        seq_len=s,
    )
    a_layer = activations_at_the_loss(step, 2) - activations_at_the_loss(step, 1)
    assert a_layer == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=5e-3)
    flash = make_step(step.workload, "bf16_grads flash")
    assert activations_at_the_loss(flash, 2) - activations_at_the_loss(flash, 1) == pytest.approx(
        s * b * h * 34 + 4 * b * a * s, rel=3e-2
    )
