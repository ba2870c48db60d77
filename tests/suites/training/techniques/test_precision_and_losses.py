"""Losses of each technique against the baseline's; what mixed precision holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_steps import LLAMA, make_step
from torch import nn

from suites.memory.live_bytes import losses
from suites.training.host_memory import HostMemory, Resources
from suites.training.optimizers import make_torch_optimizer
from suites.training.techniques import build_step, mixed_precision
from suites.training.trainer import CPU


@pytest.mark.parametrize(
    "techniques",
    ["flash", "full", "selective", "autocast", "bf16_grads", "fp32_grads", "autocast flash full"],
)
def test_losses_are_the_baselines(techniques):
    workload = replace(
        LLAMA, num_hidden_layers=2, num_key_value_heads=2, gradient_accumulation_steps=2, max_grad_norm=1.0
    )
    step = make_step(workload, techniques)
    ours, theirs = losses(step), losses(make_step(workload))
    assert ours[0] != ours[-1]
    assert ours == pytest.approx(theirs, rel=step.contract.relative)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="mode='some': expected one of full, selective"):
        build_step(LLAMA, [{"activation_checkpointing": {"mode": "some"}}])
    either = "(bf16, fp32|fp32, bf16)"  # typing takes Literals for equal whatever their order, and keeps one
    with pytest.raises(ValueError, match=f"gradients='fp8': expected one of {either} or null"):
        build_step(LLAMA, [{"mixed_precision": {"gradients": "fp8"}}])


def test_what_precision_holds_is_reported():
    for held in ("autocast", "bf16_grads", "fp32_grads"):
        assert any("fp32" in note for note in make_step(LLAMA, held).notes)


@pytest.mark.parametrize("make", [mixed_precision.NarrowGradients, mixed_precision.WideGradients])
def test_updates_too_small_for_bf16_gather_in_the_master(make):
    workload, gradient = replace(LLAMA, optimizer="sgd_momentum"), 0.0078125  # exact in bf16
    weight, plain = nn.Parameter(torch.ones(4, dtype=torch.bfloat16)), nn.Parameter(torch.ones(4))
    ours = make(nn.ParameterList([weight]), workload, Resources(CPU, HostMemory(CPU)))
    reference = make_torch_optimizer([plain], workload)
    for _ in range(30):
        (weight * gradient).sum().backward()
        ours.step()
        ours.zero_grad()
        plain.grad = torch.full((4,), gradient)
        reference.step()
    torch.testing.assert_close(ours.masters[0].data, plain.data)
    assert torch.equal(weight.data, plain.data.bfloat16())
    assert (weight < 1).all()
