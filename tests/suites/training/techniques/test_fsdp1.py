"""FSDP1: correct on real ranks, and its dry run compared with real tensors."""

from dataclasses import replace

import pytest
from real_ranks import (
    CLIPPED,
    GPT,
    HOST,
    SMALL,
    TINY,
    baseline_losses,
    dry_and_measured,
    losses_on_ranks,
    sharded,
)

from harness.records import Unavailable
from suites.training.dry_run.dry_run import dry_run
from suites.training.techniques import build_step

CLOSE = 1e-4

RUNS = {
    "tiny": ("fsdp1", TINY, 2),
    "gpt": ("fsdp1", GPT, 2),
    "clipped": ("fsdp1", CLIPPED, 3),
    "gathered until the backward pass": ([{"fsdp1": {"strategy": "shard_grad_op"}}], TINY, 2),
    "reduced with the last": ([{"fsdp1": {"reduce_every_micro_batch": False}}], CLIPPED, 2),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return dict(
        zip(RUNS, losses_on_ranks(list(RUNS.values()), tmp_path_factory.mktemp("ranks")), strict=True)
    )


@pytest.mark.parametrize("name", RUNS)
def test_losses_on_ranks_are_plain_pytorchs(name, found):
    """Each rank draws the same sequences, so the mean over ranks is what one process gets."""
    _, workload, _ = RUNS[name]
    for losses in found[name]:
        assert losses == pytest.approx(baseline_losses(workload), rel=1e-5)


ONE_MICRO_BATCH = replace(SMALL, gradient_accumulation_steps=1)
SET_UPS = {
    "odd sizes, three ranks, tied": (
        "fsdp1",
        replace(SMALL, dp_size=3, hidden_size=120, vocab_size=501, tie_word_embeddings=True, bias=True),
    ),
    "gathered until the backward pass": ([{"fsdp1": {"strategy": "shard_grad_op"}}], SMALL),
    "mixed, checkpointed": (["fsdp1", "mixed_precision", "activation_checkpointing"], ONE_MICRO_BATCH),
    "mixed, bf16 reduction": ([{"fsdp1": {"reduce_dtype": "bf16"}}, "mixed_precision"], SMALL),
    "unreduced": ([{"fsdp1": {"reduce_every_micro_batch": False}}], replace(SMALL, max_grad_norm=1.0)),
    "all in bf16": (["fsdp1", "bf16_states"], ONE_MICRO_BATCH),
}


@pytest.mark.parametrize("name", SET_UPS)
def test_a_dry_run_is_as_measured(name):
    techniques, workload = SET_UPS[name]
    dry, measured_B = dry_and_measured(sharded(techniques, workload))
    assert dry.peak_B == pytest.approx(measured_B, rel=CLOSE)


def test_a_dry_run_of_few_layers_is_as_measured_of_more():
    """Of three to six: with seven, one that is not traced."""
    step = sharded("fsdp1", replace(ONE_MICRO_BATCH, num_hidden_layers=7))
    full, measured_B = dry_and_measured(step)
    assert dry_run(step, HOST) == full
    assert full.peak_B == pytest.approx(measured_B, rel=CLOSE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["fsdp1", {"mixed_precision": {"gradients": "bf16"}}], "torch's own optimizer only"),
        (["fsdp1", {"optimizer": {"name": "adafactor"}}], "a rank has flat parts of them"),
        ([{"fsdp1": {"reduce_dtype": "bf16"}}], "list mixed_precision too"),
        (["fsdp1", "compile"], "use fsdp2 with compile"),
        (["fsdp1", "lora"], "a flat parameter has one type"),
        (["fsdp1", "fsdp2"], "both decide how ranks share the model"),
        (["fsdp1", "optimizer_in_backward"], "another technique has its own"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(given, words):
    with pytest.raises(Unavailable) as caught:
        build_step(replace(SMALL, gradient_accumulation_steps=1), given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
