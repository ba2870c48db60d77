"""A dry run repeats what widening a quantized weight allocates, with the timeline of running it each time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_steps import LLAMA
from torch import nn

from suites.training import quantization
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step

STEP = replace(LLAMA, num_hidden_layers=3)
FULL = [{"activation_checkpointing": {"mode": "full"}}]


@pytest.mark.parametrize("base", ["nf4", "int8"])
@pytest.mark.parametrize(
    "recompute", [[], [{"activation_checkpointing": {"mode": "full"}}]], ids=["", "full"]
)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_timeline_is_that_of_running_each_widening(base, recompute, steps, monkeypatch):
    recipe = ["mixed_precision", *recompute, {"lora": {"rank": 4, "base": base}}]
    if steps > 1:
        recipe.append({"gradient_accumulation": {"steps": steps, "split": False}})
    step = build_step(STEP, recipe)
    repeated = dry_run(step, Device("cuda"), full=True)
    runs = []

    def run_each(key, run):
        runs.append(key)
        run()

    monkeypatch.setattr(quantization, "repeatable", run_each)
    each = dry_run(step, Device("cuda"), full=True)
    assert len(runs) > len(set(runs))
    assert each.timeline.events == repeated.timeline.events
    assert (each.peak_B, each.reserved_B, each.allocated_B) == (
        repeated.peak_B,
        repeated.reserved_B,
        repeated.allocated_B,
    )


@pytest.mark.parametrize("at_once", [512, 640])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_a_slice_of_each_size_stands_for_all(at_once, optimizer, monkeypatch):
    """512 divides every matrix of the model, 640 leaves a shorter slice; the slow way runs every slice."""
    monkeypatch.setattr(quantization.slices, "__defaults__", (at_once,))
    recipe = ["mixed_precision", *FULL, {"lora": {"rank": 4, "base": "nf4"}}]
    step = build_step(replace(STEP, optimizer=optimizer), recipe)
    short = dry_run(step, Device("cuda"), full=True)
    monkeypatch.setattr(quantization, "torch_internals", SimpleNamespace(is_fake=lambda _: False))
    slow = dry_run(step, Device("cuda"), full=True)
    assert len(slow.timeline.events) > 2 * len(short.timeline.events)
    assert (slow.peak_B, slow.reserved_B, slow.allocated_B) == (
        short.peak_B,
        short.reserved_B,
        short.allocated_B,
    )


def test_a_quantized_weight_of_several_slices_is_widened_whole(monkeypatch):
    """The values are those of one slice, so no slice is left out where tensors are real."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 96)
    whole = quantization.Int8Linear(layer).weight()
    monkeypatch.setattr(quantization, "SLICE", 640)
    assert torch.equal(quantization.Int8Linear(layer).weight(), whole)
