"""What further micro-batches take (`harness.fit config=` counts on it), the largest, and names of tensors."""

from dataclasses import replace

import pytest
from small_steps import CUDA, LLAMA

from harness.instruments.memory.memory_timeline import OpSite
from suites.training.dry_run import largest_batch
from suites.training.dry_run.dry_run import dry_run
from suites.training.dry_run.largest_batch import Fit, Target
from suites.training.dry_run.live_tensors import group_of
from suites.training.techniques import build_step

SHORT = replace(LLAMA, num_hidden_layers=2)

LOSS_B = 512
"""A micro-batch's loss, a number that is kept to the end of the step in a block of its own."""

RECIPES = [
    ["mixed_precision", "attention"],
    ["mixed_precision", {"activation_checkpointing": {"mode": "full"}}, {"lora": {"rank": 8, "base": "nf4"}}],
    ["bf16_states", {"loss": {"chunks": 4}}],
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_further_micro_batches_take_what_the_second_does(recipe):
    one, two, five = (
        dry_run(
            build_step(SHORT, [*recipe, {"gradient_accumulation": {"steps": steps, "split": False}}]), CUDA
        )
        for steps in (1, 2, 5)
    )
    assert five.peak_B == two.peak_B + 3 * LOSS_B
    assert five.reserved_B == two.reserved_B
    assert one.peak_B <= two.peak_B


def test_the_largest_is_the_first_after_which_more_do_not_fit(monkeypatch):
    """From 109 on the allocator frees its cache in time again, and from 128 on nothing helps."""

    def predicted(step, target, run, workload, count):
        return Fit(count <= 107 or count in (109, 126, 127), int(count > 107))

    monkeypatch.setattr(largest_batch, "predicted_fit", predicted)
    step = build_step(LLAMA, ())
    assert largest_batch.predicted_largest(step, Target(1e9), None, 1, 0, 1000) == 107


def test_activations_are_no_scores_where_the_hidden_size_is_the_sequence_length():
    def subject(operation, *shape):
        return group_of("activations", OpSite("forward 0", operation, shape), 500, 64).subject

    assert subject("aten.mul.Tensor", 2, 64, 64) == "activations kept for the backward pass"
    assert subject("aten._softmax.default", 2, 4, 64, 64) == "attention scores"
    assert subject("aten.bmm.default", 8, 64, 64) == "attention scores"
