"""FSDP2 with tensor parallelism: correct on real ranks; dry runs of one rank compared with real tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from offload_ranks import Pools
from real_ranks import CLIPPED, GPT, SMALL, TINY, dry_and_measured, sharded

from harness.records import Unavailable, WrongResult
from suites.memory import suite as memory
from suites.memory.subject import Subject, outside_allocator_B
from suites.memory.thresholds import allowed_ranks
from suites.training import on_rank
from suites.training.correctness import (
    RANKS,
    UPDATES_ON_RANKS,
    check,
    check_on_ranks,
    compare,
    mean_over_ranks,
    plain_losses,
    text_updates,
)
from suites.training.dry_run.dry_run import dry_run
from suites.training.techniques import build_step

MESH = ["fsdp2", "tensor_parallel"]
FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]
ALL = [*MESH, *FURTHER]
BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
ONCE = replace(SMALL, gradient_accumulation_steps=1)

EVEN, EVEN_GPT = replace(TINY, seq_len=18), replace(GPT, seq_len=18)

ON_RANKS = {
    "momentum, accumulated": (TINY, MESH),
    "AdamW, tied, learned positions, clipped": (replace(GPT, bias=False), MESH),
    "by sequence, momentum, clipped": (replace(CLIPPED, seq_len=18), ["fsdp2", BY_SEQUENCE]),
    "by sequence, mixed, checkpointed, flash": (EVEN, ["fsdp2", BY_SEQUENCE, *FURTHER]),
    "by sequence, reduced with the last, head apart": (
        EVEN,
        [BY_SEQUENCE, {"fsdp2": {"reduce_every_micro_batch": False, "head": "apart"}}],
    ),
    "by sequence, alone": (
        replace(EVEN, seq_len=16, num_key_value_heads=4, tp_size=4, max_grad_norm=0.05),
        [BY_SEQUENCE],
    ),
}


@pytest.fixture(scope="module")
def call():
    """Return the call of a function of `on_rank` on four real ranks."""
    with ExitStack() as stack:
        pools = Pools(stack)
        yield lambda function, **given: pools.pool(4).call(
            function if ":" in function else f"{on_rank.__name__}:{function}", **given
        )


def checked(call, step):
    call("make", key="ours", step=step.described)
    try:
        return check_on_ranks(step, call, "ours")
    finally:
        call("drop", key="ours")


@pytest.mark.parametrize("case", ON_RANKS)
def test_real_ranks_see_the_losses_and_gradients_of_one_device(case, call):
    workload, techniques = ON_RANKS[case]
    step = sharded(techniques, workload)
    assert step.ranks == 4
    checked(call, step)


def test_so_they_see_the_losses_with_biases(call):
    """A key's bias has no gradient but rounding: softmax is unchanged by it."""
    step = sharded(["fsdp2", BY_SEQUENCE], EVEN_GPT)
    call("make", key="ours", step=step.described)
    ours = mean_over_ranks(call("updates", key="ours", count=UPDATES_ON_RANKS))
    call("drop", key="ours")
    compare(ours, plain_losses(step, text_updates(step, UPDATES_ON_RANKS)), RANKS)


def test_a_rank_with_other_parameters_is_caught(call):
    call("wrong_on_ranks:spoil", times=1.0, apart=True)
    try:
        with pytest.raises(WrongResult, match="off by"):
            checked(call, sharded(MESH, TINY))
    finally:
        call("wrong_on_ranks:mend")


def test_the_only_rank_of_a_group_is_right_too():
    check(sharded(ALL, TINY))
    check(sharded(["fsdp2", BY_SEQUENCE, *FURTHER], EVEN))


def test_rows_share_each_layer_and_take_different_data():
    step = sharded(MESH, replace(SMALL, dp_size=3, tp_size=2))
    assert (step.ranks, step.tensor_ranks, step.data_ranks) == (6, 2, 3)
    assert [len(batches) for batches in text_updates(step, 2)] == [6, 6]  # two micro-batches each
    assert memory.tokens_per_step(Subject(step, 80e9)) == 6 * 2 * 64


SET_UPS = {
    "three rows, odd sizes": (
        replace(ONCE, dp_size=3, hidden_size=120, intermediate_size=252, vocab_size=501),
        MESH,
    ),
    "tied, biases, clipped, foreach": (
        replace(GPT, hidden_size=128, intermediate_size=512, vocab_size=1000, optimizer_impl="foreach"),
        MESH,
    ),
    "accumulated": (replace(SMALL, dp_size=2, tp_size=2), [*MESH, "mixed_precision"]),
    "fused, four per row": (
        replace(ONCE, num_key_value_heads=4, tp_size=4, optimizer_impl="fused"),
        MESH,
    ),
    "head apart": (ONCE, ["tensor_parallel", {"fsdp2": {"head": "apart"}}]),
    "by sequence, tied, biases, learned, clipped, foreach": (
        replace(EVEN_GPT, hidden_size=128, intermediate_size=512, vocab_size=1000, optimizer_impl="foreach"),
        ["fsdp2", BY_SEQUENCE],
    ),
    "by sequence, accumulated": (SMALL, ["fsdp2", BY_SEQUENCE, "mixed_precision"]),
    "by sequence, all": (
        replace(ONCE, num_key_value_heads=4, tp_size=4, dp_size=3, micro_batch_size=1),
        ["fsdp2", BY_SEQUENCE, *FURTHER],
    ),
    "by sequence, alone, all": (replace(ONCE, micro_batch_size=1), [BY_SEQUENCE, *FURTHER]),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_equals_what_real_tensors_take(set_up):
    workload, techniques = SET_UPS[set_up]
    steps = 2 if "accumulated" in set_up else 1  # what is kept from step to step shows
    walked, measured_B = dry_and_measured(sharded(techniques, workload), steady_steps=steps)
    assert walked.peak_B == pytest.approx(measured_B, rel=1e-4)


def test_a_rank_has_its_share_of_every_matrix():
    """Norms are spread over rows alone."""
    workload = replace(ONCE, dp_size=4, tp_size=2, optimizer="adamw", optimizer_impl="for_loop")
    step = sharded(MESH, workload)
    parameters = memory.count_model(Subject(step, 80e9)).parameters
    norms = (2 * workload.num_hidden_layers + 1) * workload.hidden_size
    buffers_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    found_B = dry_run(step).by_kind_B["parameters"]
    assert found_B == 4 * ((parameters - norms) // 8 + norms // 4) + buffers_B


def test_each_dimension_of_the_mesh_has_a_communicator():
    def nccl_B(**sizes):
        return outside_allocator_B(sharded(MESH, replace(SMALL, **sizes)))["nccl_buffers"]

    MiB = 1024**2
    assert nccl_B(dp_size=2, tp_size=2) == 2 * 544 * MiB
    assert nccl_B(dp_size=4, tp_size=2) == (688 + 544) * MiB
    assert nccl_B(dp_size=1, tp_size=2) == 544 * MiB


def test_the_search_varies_the_rows():
    subject = Subject(sharded(MESH, replace(SMALL, dp_size=3, tp_size=2)), 80e9)
    assert list(allowed_ranks(subject))[:4] == [2, 4, 6, 8]
    alone = Subject(sharded("tensor_parallel", SMALL), 80e9)
    assert list(allowed_ranks(alone)) == [1, 2]


@pytest.mark.parametrize("other", ["ddp", "fsdp1", "zero", "local_sgd", "host_update"])
def test_another_strategy_is_refused(other):
    with pytest.raises(
        Unavailable, match=f"tensor_parallel does not combine with {other}: ranks form a mesh"
    ):
        sharded(["tensor_parallel", other], SMALL)


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ({"cpu_offload": True}, {}, "fsdp2 with cpu_offload=True does not combine with tensor_parallel"),
        ({"shard_within": 1}, {}, "fsdp2 with shard_within=1 does not combine with tensor_parallel"),
        ({"reshard_after_forward": 2}, {"dp_size": 4}, "resharding to some ranks is not built for a mesh"),
        ({}, {"tp_size": 1}, "needs several ranks per layer, and this step has tp_size=1"),
    ],
)
def test_what_a_mesh_cannot_have_is_refused_in_one_line(settings, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        build_step(replace(SMALL, **changes), ["tensor_parallel", {"fsdp2": settings}])
    assert "\n" not in str(caught.value)


def test_a_sequence_that_ranks_cannot_share_is_refused():
    with pytest.raises(Unavailable, match="sequence_parallel: tp_size=2 does not divide seq_len=17"):
        sharded([BY_SEQUENCE], TINY)
