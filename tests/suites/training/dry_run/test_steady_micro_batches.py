"""A step's third micro-batch takes what its second does, which `harness.fit config=` counts on."""

from dataclasses import replace

import pytest
from small_steps import LLAMA

from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step

SHORT = replace(LLAMA, num_hidden_layers=2)
CUDA = Device("cuda")

LOSS_B = 512
"""A micro-batch's loss, a number that is kept to the end of the step in a block of its own."""

RECIPES = [
    ["mixed_precision", "attention"],
    ["mixed_precision", {"activation_checkpointing": {"mode": "full"}}, {"lora": {"rank": 8, "base": "nf4"}}],
    ["bf16_states", {"loss": {"chunks": 4}}],
]


def run(recipe, steps):
    accumulated = {"gradient_accumulation": {"steps": steps, "split": False}}
    return dry_run(build_step(SHORT, [*recipe, accumulated]), CUDA)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_further_micro_batches_take_what_the_second_does(recipe):
    two, five = run(recipe, 2), run(recipe, 5)
    assert five.peak_B == two.peak_B + 3 * LOSS_B
    assert five.reserved_B == two.reserved_B


def test_one_micro_batch_may_take_less():
    recipe = ["mixed_precision"]
    assert run(recipe, 1).peak_B < run(recipe, 2).peak_B
