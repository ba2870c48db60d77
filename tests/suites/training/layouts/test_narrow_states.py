"""States of FP8 recipes, gradients of scores, host memory: by hand, by tensors, by published runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.states import (
    all_layers_of,
    deepspeed_host_B,
    host_B,
    parameters_of,
    power_of_two,
    states_B,
)
from suites.training.models.model import Transformer
from suites.training.step_time.published.rows import question
from suites.training.step_time.published.steps import published
from suites.training.step_time.questions import answers
from suites.training.workload import Workload

FIRST = np.array([0])
SMALL = Workload(
    num_hidden_layers=4, hidden_size=64, num_attention_heads=8, num_key_value_heads=8,
    intermediate_size=256, vocab_size=1024, seq_len=128, norm="rms", mlp="swiglu", position="rotary",
)  # fmt: skip
SHAPE = TransformerShape(
    num_hidden_layers=4, hidden_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=8,
    intermediate_size=256, vocab_size=1024,
)  # fmt: skip
FP8 = Training(seq_len=128, precision="fp8")
RECIPE = replace(FP8, gradients="bf16", fp8_parameters=True, master_remainders=True)


def states(training: Training, layout: Layouts, architecture: str = "hopper") -> tuple[float, ...]:
    layers = all_layers_of(SHAPE, layout, training, FIRST)
    found = states_B(layout, training, parameters_of(SHAPE, layout, layers, FIRST), architecture)
    return tuple(float(each[0]) for each in found)


@pytest.mark.parametrize(
    ("training", "architecture", "of_layer", "outside", "gradient", "optimizer"),
    [
        (replace(FP8, precision="bf16"), "hopper", 2, 2, 4, 12),
        (FP8, "hopper", 2 + 2, 2, 4, 12),  # two copies: rows, and transposed
        (FP8, "blackwell", 2 + 1, 2, 4, 12),
        (RECIPE, "hopper", 2, 2, 2, 12),
        (RECIPE, "blackwell", 1, 2, 2, 12),
        (replace(RECIPE, precision="mxfp8"), "blackwell", 2 + 2 / 32, 2, 2, 12),
        (replace(RECIPE, precision="nvfp4"), "blackwell", 2 + 1 + 2 / 16, 2, 2, 12),
        (replace(RECIPE, precision="bf16"), "hopper", 2, 2, 2, 2 + 8),
        (replace(RECIPE, program="torchtitan", precision="bf16"), "hopper", 4, 4, 4, 8),
    ],
)
def test_bytes_per_parameter_of_a_models_layers_and_of_the_rest(
    training, architecture, of_layer, outside, gradient, optimizer
):
    with torch.device("meta"):
        model = Transformer(SMALL.shape)
    inside = sum(one.numel() for layer in model.blocks for one in layer.parameters())
    rest = sum(one.numel() for one in model.parameters()) - inside
    layout = Layouts.of([{"dp": 4, "zero": 1}])
    assert states(training, layout, architecture) == pytest.approx(
        (inside * of_layer + rest * outside, gradient * (inside + rest), optimizer * (inside + rest) / 4)
    )


RECOMPUTED = {"steps/614", "steps/622", "steps/690"}
"""Published runs that fit with recompute alone, of which nothing was published: Llama 3 70B on 64 GB200 and
GB300 with Megatron's FSDP, and Llama 2 70B on 16 H100."""


def test_every_published_run_of_megatrons_recipes_is_said_to_fit_and_fewer_without_what_they_do():
    """Plain Megatron-LM has fp32 gradients, full master weights, and two copies in FP8 next to bf16."""
    others = ("playbook", "llm-foundry")
    steps = [question(one) for one in published() if one.step_s and not one.source.startswith(others)]
    assert len(steps) == 130
    assert not not_fitting(steps)
    plain = [{"recompute": "none", **one} for one in steps]
    assert not_fitting(plain) == RECOMPUTED
    submitted = [one for one in plain if not one["source"].startswith("mlperf")]
    assert len(not_fitting(submitted, framework="Megatron-LM")) > len(submitted) / 6


def not_fitting(steps: list[Any], **changed: Any) -> set[str]:
    """Return the steps that are said not to fit."""
    said = answers([{**one, **changed} for one in steps])
    return {one["id"] for one in said if one["step_s"] and not one["fits"]}


LLAMA = TransformerShape(
    num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
    intermediate_size=224, vocab_size=1000,
)  # fmt: skip
OFFLOADED = Training(seq_len=128, program="torchtitan", offload="optimizer")


@pytest.mark.parametrize(("ranks", "tied"), [(1, False), (4, False), (8, True)])
def test_fsdp2_pins_a_block_per_tensor_and_torch_rounds_each_up(ranks, tied):
    shape = replace(LLAMA, tie_word_embeddings=tied)
    workload = Workload(
        num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=224, vocab_size=1000, seq_len=128, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        sizes = [one.numel() / ranks for one in Transformer(workload.shape).parameters()]
    expected_B = sum(2 * 2 ** int(np.ceil(np.log2(4 * size))) for size in sizes)
    layouts = Layouts.of([{"dp": ranks, "zero": 3}])
    layers = all_layers_of(shape, layouts, OFFLOADED, FIRST)
    found = host_B(shape, layouts, OFFLOADED, layers, FIRST)
    assert found.reserved[0] - found.pageable[0] == expected_B
    assert found.asked[0] == pytest.approx(16 * sum(sizes), rel=0.03)  # a padded vocabulary
    with_momentum = host_B(shape, layouts, replace(OFFLOADED, optimizer="sgd_momentum"), layers, FIRST)
    assert with_momentum.asked[0] == pytest.approx(12 / 16 * found.asked[0])
    assert not host_B(shape, layouts, replace(OFFLOADED, offload="none"), layers, FIRST).asked.any()


def test_muon_has_one_momentum_of_matrices_and_adam_two_of_the_rest():
    """On the host, too: of the layers' matrices 4 bytes, of embedding and output layer 8."""
    layouts = Layouts.of([{"dp": 1, "zero": 3}])
    layers = all_layers_of(LLAMA, layouts, OFFLOADED, FIRST)
    found = host_B(LLAMA, layouts, replace(OFFLOADED, optimizer="muon"), layers, FIRST)
    matrices = 3 * (2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 224)
    assert found.pageable[0] == pytest.approx(4 * matrices + 8 * 2 * 1024 * 96, rel=0.01)  # norms, padding


@pytest.mark.parametrize(("narrow", "of_matrix", "of_rest"), [("fp32", 4, 8), ("bf16", 2, 4)])
def test_muons_momentum_is_as_wide_as_the_parameters(narrow, of_matrix, of_rest):
    training = Training(seq_len=128, program="torchtitan", optimizer="muon", states=narrow)
    layout = Layouts.of([{"dp": 1, "zero": 3}])
    every = parameters_of(SHAPE, layout, all_layers_of(SHAPE, layout, training, FIRST), FIRST)
    inside, rest = float(every.all[0] - every.outside[0]), float(every.outside[0])
    assert states(training, layout)[2] == of_matrix * inside + of_rest * rest


def test_deepspeeds_bytes_per_parameter_and_its_page_locked_blocks_rounded_up_one_by_one():
    """10 B after deepspeed.initialize and 8 B more in the first update: deepspeedai/DeepSpeed, issue 7693."""
    part = np.array([1.5e9])
    of_2, of_3, with_parameters = (
        deepspeed_host_B(part, np.array([stage]), parameters)
        for stage, parameters in ((2, False), (3, False), (3, True))
    )
    assert of_2.asked[0] == (10 + 8) * 1.5e9
    assert with_parameters.asked[0] == (4 + 2 + 4 + 8 + 2) * 1.5e9
    assert of_2.reserved[0] == 8 * 1.5e9 + 2**33 + 2**32 + 2**33  # 6, 3 and 6 GB
    assert of_3.reserved[0] == 12 * 1.5e9 + 2**32 + 2**32 + 2**31  # 3 GB, and sub-groups of 4 and 2 GB
    assert list(power_of_two(np.array([0.0, 1.0, 3.0, 4.0]))) == [0, 1, 4, 4]
