"""Tensor parallelism: correct on real ranks; its dry run of one rank compared with real tensors."""

from dataclasses import replace

import pytest
import torch
from real_ranks import (
    CLIPPED,
    GPT,
    SMALL,
    TINY,
    baseline_losses,
    dry_and_measured,
    losses_on_ranks,
    sharded,
)

from harness.records import Unavailable
from suites.training.correctness import check
from suites.training.dry_run.dry_run import dry_run
from suites.training.techniques import build_step
from suites.training.trainer import build_model

SET_UPS = {
    "grouped_queries": replace(SMALL, num_hidden_layers=2, gradient_accumulation_steps=1),
    "odd_vocabulary_tied_biases": replace(
        GPT, hidden_size=128, intermediate_size=512, vocab_size=1001, tp_size=4
    ),
    "accumulated_clipped_foreach": replace(SMALL, max_grad_norm=1.0, optimizer_impl="foreach"),
    "seven_ranks": replace(
        SMALL,
        num_attention_heads=7,
        num_key_value_heads=7,
        hidden_size=112,
        intermediate_size=231,
        vocab_size=501,
        tp_size=7,
        num_hidden_layers=2,
        gradient_accumulation_steps=1,
    ),
    "fused": replace(SMALL, num_hidden_layers=2, gradient_accumulation_steps=1, optimizer_impl="fused"),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_equals_what_real_tensors_take(set_up):
    steps = 2 if set_up == "accumulated_clipped_foreach" else 1  # what is kept from step to step shows
    walked, measured_B = dry_and_measured(sharded("tensor_parallel", SET_UPS[set_up]), steady_steps=steps)
    assert walked.peak_B == pytest.approx(measured_B, rel=1e-4)


def test_so_it_does_with_what_users_add():
    added = ["mixed_precision", "attention", "activation_checkpointing"]
    step = sharded(["tensor_parallel", *added], replace(SMALL, micro_batch_size=1))
    walked, measured_B = dry_and_measured(step)
    assert walked.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize("workload", [replace(SMALL, tp_size=2), replace(GPT, tp_size=4)])
def test_each_rank_holds_its_share_of_every_matrix(workload):
    ranks = workload.tp_size
    with torch.device("meta"):
        model = build_model(build_step(workload, (), 3))
    cut = ("token_embedding", "query", "key", "value", "gate", "up", "down", "attention.output", "head")
    expected_B = sum(one.nbytes for one in model.buffers())
    for name, one in model.named_parameters():
        rows_cut = any(part in name for part in cut) and not (
            name.endswith("bias") and ("down" in name or "output" in name)
        )
        if rows_cut and ("down" in name or "attention.output" in name):
            expected_B += 4 * one.shape[0] * -(-one.shape[1] // ranks)
        elif rows_cut:
            expected_B += 4 * -(-one.shape[0] // ranks) * one[0].numel()
        else:
            expected_B += one.nbytes
    walked = dry_run(sharded("tensor_parallel", workload))
    assert walked.by_kind_B["parameters"] == expected_B


ON_RANKS = {
    "two": (TINY, 2),
    "two, gpt": (GPT, 2),
    "two, clipped": (CLIPPED, 2),
    "four": (replace(TINY, num_key_value_heads=4), 4),
}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Return what real ranks saw of each case."""
    runs = [("tensor_parallel", workload, ranks) for workload, ranks in ON_RANKS.values()]
    return dict(zip(ON_RANKS, losses_on_ranks(runs, tmp_path_factory.mktemp("ranks")), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_RANKS)
def test_real_ranks_see_the_losses_of_one_device(case, on_ranks):
    workload, ranks = ON_RANKS[case]
    expected = baseline_losses(workload)
    assert len(on_ranks[case]) == ranks
    for seen in on_ranks[case]:
        assert seen == pytest.approx(expected, rel=1e-5)


def test_the_only_rank_of_a_group_is_right_too():
    check(sharded("tensor_parallel", TINY))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp_size": 3}, "tp_size=3 does not divide num_attention_heads=4"),
        ({"tp_size": 4}, "tp_size=4 does not divide num_key_value_heads=2"),
        ({"intermediate_size": 57}, "tp_size=2 does not divide intermediate_size=57"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(changes, words):
    with pytest.raises(Unavailable, match=words):
        sharded("tensor_parallel", replace(TINY, **changes))


def test_another_model_is_refused():
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 10}
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    with pytest.raises(Unavailable, match="it shards the layers of suites"):
        sharded("tensor_parallel", replace(TINY, hf_config=config))
