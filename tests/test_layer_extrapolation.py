"""Dry runs of a few uniform layers against those of every layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_steps import TECHNIQUES, WORKLOADS, assert_as_measured
from small_steps import CUDA, HOST, LLAMA, LLAMA_7B, make_step
from torch import nn

from suites.training.dry_run import Device, dry_run
from suites.training.model import Block, Transformer

pytestmark = pytest.mark.usefixtures("frozen")


@settings(max_examples=6, deadline=None, derandomize=True)
@given(WORKLOADS, TECHNIQUES, st.integers(4, 6), st.sampled_from([HOST, CUDA]))
def test_extrapolated_layers_equal_a_full_trace(workload, techniques, num_hidden_layers, device):
    step = make_step(workload, " ".join(techniques), num_hidden_layers=num_hidden_layers)
    assert dry_run(step, device) == dry_run(step, device, full=True)


@pytest.mark.parametrize("techniques", ["", "flash bf16_grads full"])
def test_extrapolated_layers_equal_a_full_trace_on_7b(techniques):
    """With fewer layers; the peak is at the place where it is with 32. No operation of that size is run."""
    step, host = make_step(LLAMA_7B, techniques, num_hidden_layers=9), Device()
    assert dry_run(step, host) == dry_run(step, host, full=True)


def growing(step, num_hidden_layers):
    """Return a step in which each layer's MLP is wider than the last one's."""
    model = Transformer(step.workload.shape, step.attention)
    model.blocks = nn.ModuleList(
        Block(replace(step.workload.shape, intermediate_size=64 * (1 + index)), step.attention)
        for index in range(num_hidden_layers)
    )
    return model


def test_layers_that_are_not_alike_are_traced_one_by_one():
    step = replace(make_step(LLAMA, optimizer="sgd_momentum"), make_model=growing)
    found = dry_run(step, HOST)
    assert found == dry_run(step, HOST, full=True)
    assert_as_measured(step, found)
