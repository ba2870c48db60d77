"""ZeRO by deepspeed's engine: right on real ranks, and its walk held against real tensors of one process."""

from dataclasses import replace
from itertools import product

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

from harness.records import Reading, Unavailable
from suites.memory.subject import Subject
from suites.memory.suite import count_model
from suites.memory.thresholds import thresholds
from suites.training.correctness import check
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step
from suites.training.trainer import build_model

pytest.importorskip("deepspeed")
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
TECHNIQUE = {name: [{"zero": {"stage": stage}}] for name, stage in STAGES.items()}
SET_UPS = {
    "plain": replace(
        SMALL, dp_size=4, gradient_accumulation_steps=1, vocab_size=300, hidden_size=256, num_hidden_layers=2
    ),
    "odd_accumulated_clipped": replace(
        SMALL,
        dp_size=3,
        hidden_size=64,
        intermediate_size=251,
        vocab_size=501,
        max_grad_norm=1.0,
        num_hidden_layers=2,
    ),
    "tied_biases_foreach": replace(
        SMALL,
        tie_word_embeddings=True,
        bias=True,
        norm="layer",
        position="learned",
        optimizer_impl="foreach",
        num_hidden_layers=2,
        gradient_accumulation_steps=1,
    ),
    "momentum": replace(
        SMALL, optimizer="sgd_momentum", dp_size=8, gradient_accumulation_steps=1, num_hidden_layers=2
    ),
}
STAGES_OF = {
    "plain": ("zero3",),
    "odd_accumulated_clipped": STAGES,  # each stage pads, adds and clips in a way of its own
    "tied_biases_foreach": ("zero2", "zero3"),
    "momentum": ("zero1",),
}


@pytest.mark.parametrize(
    ("set_up", "name"), [(set_up, name) for set_up, names in STAGES_OF.items() for name in names]
)
def test_the_dry_run_equals_what_real_tensors_take(set_up, name):
    steps = 2 if set_up == "odd_accumulated_clipped" else 1  # what is kept from step to step shows
    walked, measured_B = dry_and_measured(sharded(TECHNIQUE[name], SET_UPS[set_up]), steady_steps=steps)
    assert walked.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize("stage", STAGES.values())
def test_so_it_does_in_bf16_with_an_odd_number_of_parameters(stage):
    workload = replace(
        SMALL,
        num_hidden_layers=2,
        gradient_accumulation_steps=1,
        dp_size=4,
        mlp="gelu",
        intermediate_size=335,
        bias=True,
    )
    walked, measured_B = dry_and_measured(
        sharded([{"zero": {"stage": stage}}, "mixed_precision", "attention"], workload)
    )
    assert walked.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize(("name", "stage"), STAGES.items())
def test_each_rank_holds_its_share_of_what_the_stage_spreads(name, stage):
    workload = replace(SMALL, num_hidden_layers=2, dp_size=8, gradient_accumulation_steps=1)
    with torch.device("meta"):
        model = build_model(build_step(workload, (), 3))
    whole_B = 4 * sum(one.numel() for one in model.parameters())
    buffers_B = sum(one.nbytes for one in model.buffers())
    walked = dry_run(sharded(TECHNIQUE[name], workload))
    share = {1: 1, 2: 1, 3: 1 / 8}[stage]
    assert walked.by_kind_B["parameters"] - buffers_B == pytest.approx(share * whole_B, rel=2e-3)
    states = 3  # the two of Adam, and a second copy of the shard, in fp32 too
    assert walked.by_kind_B["optimizer_states"] == pytest.approx(states * whole_B / 8, rel=2e-3)


WORKLOADS = {"tiny": TINY, "gpt": GPT, "clipped": CLIPPED}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Return what two real ranks saw of each stage and workload."""
    cases = list(product(STAGES, WORKLOADS))
    runs = [(TECHNIQUE[name], WORKLOADS[workload], 2) for name, workload in cases]
    return dict(zip(cases, losses_on_ranks(runs, tmp_path_factory.mktemp("ranks")), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_real_ranks_see_the_losses_of_one_device(name, workload, on_ranks):
    expected = baseline_losses(WORKLOADS[workload])
    for seen in on_ranks[name, workload]:
        assert seen == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_the_only_rank_of_a_group_is_right_after_other_groups(name):
    """And the engine leaves linear layers as they were."""
    before = torch.nn.functional.linear
    dry_run(sharded(TECHNIQUE[name], replace(TINY, dp_size=5)))
    assert torch.nn.functional.linear is before
    check(sharded(TECHNIQUE[name], TINY))


def test_a_large_model_has_a_dry_run_but_its_ranks_are_searched_by_formula():
    """A search tries many numbers of ranks, and each try runs every layer."""
    large = replace(
        TINY,
        hidden_size=4096,
        num_hidden_layers=1,
        intermediate_size=14336,
        vocab_size=50_000,
        dp_size=8,
        optimizer="adamw",
    )
    step = sharded([*TECHNIQUE["zero3"], "mixed_precision", "attention"], large)
    subject = Subject(step, 80e9)
    run = dry_run(step, Device("cuda"))
    parameters = large.shape.parameters
    assert run.by_kind_B["parameters"] == pytest.approx(2 * parameters / 8, rel=1e-3)
    assert run.by_kind_B["optimizer_states"] == pytest.approx(12 * parameters / 8, rel=1e-3)

    def refuse(*_, **__):
        raise AssertionError("a dry run in the search")

    found = list(thresholds(subject, count_model(subject), refuse))
    assert [one.method for one in found if isinstance(one, Reading)] == ["korthikanti"] * 2


def test_a_precision_that_deepspeed_is_not_run_in_is_refused():
    with pytest.raises(Unavailable, match="zero has bf16 gradients of its own"):
        sharded([{"zero": {"stage": 1}}, {"mixed_precision": {"gradients": "fp32"}}], TINY)


def test_without_ranks_it_is_refused():
    from suites.memory.live_bytes import losses

    with pytest.raises(RuntimeError, match="no process group"):
        losses(sharded(TECHNIQUE["zero1"], TINY), 1, torch.device("cpu"))
