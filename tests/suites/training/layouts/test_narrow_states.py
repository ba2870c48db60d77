"""States of FP8 recipes, gradients of scores, autocast's copies: by hand, by tensors, by published runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.instruments.transformer import TransformerShape
from suites.training import techniques
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.layouts.account import peak_of_rank, worst_peak
from suites.training.layouts.kept import kept_of_layer
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.states import all_layers_of, parameters_of, states_B
from suites.training.models.model import Transformer
from suites.training.step_time.published.steps import PublishedStep, published, ran
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


def sizes_of_model() -> tuple[int, int]:
    """Return the parameters of all layers and of what lies outside of them, by the tensors of a model."""
    with torch.device("meta"):
        model = Transformer(SMALL.shape)
    inside = sum(one.numel() for layer in model.blocks for one in layer.parameters())
    return inside, sum(one.numel() for one in model.parameters()) - inside


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
    inside, rest = sizes_of_model()
    layout = Layouts.of([{"dp": 4, "zero": 1}])
    assert states(training, layout, architecture) == pytest.approx(
        (inside * of_layer + rest * outside, gradient * (inside + rest), optimizer * (inside + rest) / 4)
    )


def test_llama_8b_of_nemos_recipe_on_eight_gpus_by_hand():
    """8,030,261,248 parameters, as Hugging Face counts meta-llama/Llama-3.1-8B; none of it padded."""
    shape = TransformerShape(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=14336, vocab_size=128256,
    )  # fmt: skip
    layout = Layouts.of([{"dp": 4, "cp": 2, "zero": 1, "micro_batches": 32}])
    training = replace(RECIPE, seq_len=8192)
    found = peak_of_rank(shape, layout, training, FIRST).states[0]
    assert found == pytest.approx(8_030_261_248 * (2 + 2 + 12 / 8))
    plain = peak_of_rank(shape, layout, replace(FP8, seq_len=8192), FIRST).states[0]
    embeddings = 2 * 128256 * 4096 + 4096
    assert plain == pytest.approx(8_030_261_248 * (2 + 2 + 4 + 12 / 8) - 2 * embeddings)


RECOMPUTED = {"steps/614", "steps/622", "steps/690"}
"""Published runs that fit with recompute alone, of which nothing was published: Llama 3 70B on 64 GB200 and
GB300 with Megatron's FSDP, and Llama 2 70B on 16 H100."""


def of_recipes() -> list[PublishedStep]:
    """Return the steps of NeMo, Megatron Bridge, MLPerf and dgxc-benchmarking that ran."""
    return [
        one for one in published() if ran(one) and not one["source"].startswith(("playbook", "llm-foundry"))
    ]


def not_fitting(steps: list[PublishedStep], **changed: Any) -> set[str]:
    """Return the steps that are said not to fit without recompute."""
    asked = [
        {**one, "layout": {**one["layout"], "recompute": one["layout"].get("recompute") or "none"}, **changed}
        for one in steps
    ]
    return {one["id"] for one in answers(asked) if one["step_s"] and not one["fits"]}


def test_every_published_run_of_megatrons_recipes_is_said_to_fit():
    assert len(of_recipes()) == 130
    assert not [one["id"] for one in answers(of_recipes()) if one["step_s"] and not one["fits"]]
    assert not_fitting(of_recipes()) == RECOMPUTED


def test_without_what_the_recipes_do_a_sixth_of_these_runs_is_said_not_to_fit():
    """Plain Megatron-LM has fp32 gradients, full master weights, and two copies in FP8 next to bf16."""
    submitted = [one for one in of_recipes() if not one["source"].startswith("mlperf")]
    assert len(not_fitting(submitted, framework="Megatron-LM")) > len(submitted) / 6


def test_the_backward_pass_of_scores_makes_their_gradients():
    """2as of the softmax's result, and as much of its gradient; the MLP of the layer is done with by then."""
    layout = Layouts.of([{"micro_batch_size": 3}])
    long = Training(seq_len=4096, attention="unfused")
    fused, unfused = (
        kept_of_layer(SHAPE, layout, replace(long, attention=one)) for one in ("fused", "unfused")
    )
    tokens, scores = 3 * 4096, 3 * 8 * 4096**2
    sums = 4 * 8 * tokens
    assert unfused.dense[0] - fused.dense[0] == pytest.approx(2 * scores - sums)
    assert unfused.recomputed[0] == pytest.approx(2 * scores + tokens * (2 * 64 - 6 * 256))
    assert fused.recomputed[0] == pytest.approx(tokens * (2 * 64 + 6 * 256))


STEPS: list[tuple[dict[str, int], list[Any], dict[str, int]]] = [
    ({}, [], {}),
    ({"micro_batch_size": 2}, ["activation_checkpointing"], {"recompute": 2}),
    ({"vocab_size": 1024, "seq_len": 512}, [], {}),
]


@pytest.mark.parametrize(("sizes", "recipe", "fields"), STEPS, ids=str)
def test_autocast_without_sharding_takes_what_the_dry_run_takes(sizes, recipe, fields):
    """Within 5 %; without the bf16 copies of weights the first would be 11 % too low."""
    workload = Workload(**{
        "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 8192, "vocab_size": 128256, "seq_len": 4096, "optimizer_impl": "fused", **sizes,
    })  # fmt: skip
    listed = ["mixed_precision", {"attention": {"kernel": "flash"}}, *recipe]
    run = dry_run(techniques.build_step(asdict(workload), listed, 0), Device("cuda", architecture="hopper"))
    shape = TransformerShape(
        num_hidden_layers=16, hidden_size=2048, num_attention_heads=16, head_dim=128, intermediate_size=8192,
        num_key_value_heads=4, vocab_size=workload.vocab_size,
    )  # fmt: skip
    row = {"micro_batch_size": workload.micro_batch_size, **fields}
    training = Training(seq_len=workload.seq_len, program="torchtitan", attention="flash")
    assert run.allocated_B is not None
    assert worst_peak(shape, Layouts.of([row]), training).total_B[0] == pytest.approx(
        run.allocated_B, rel=0.05
    )
