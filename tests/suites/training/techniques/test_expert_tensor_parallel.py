"""Experts of ranks that share each layer: right on real ranks; dry runs compared with what tensors take."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from offload_ranks import Pools
from real_ranks import SMALL, TINY, dry_and_measured, sharded

from harness.records import Unavailable
from suites.memory.subject import Subject
from suites.memory.thresholds import allowed_ranks
from suites.training import on_rank
from suites.training.correctness import (
    UPDATES_ON_RANKS,
    check,
    check_on_ranks,
    compare,
    mean_over_ranks,
    plain_losses,
    text_updates,
)
from suites.training.dry_run.dry_run import Device, dry_run, ranks_to_run
from suites.training.dry_run.largest_batch import NCCL_OF_MORE_B, NCCL_OF_TWO_B, outside_allocator_B
from suites.training.techniques import build_step

BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
SHARED = ["fsdp2", "expert_parallel", "tensor_parallel"]
SHARED_BY_SEQUENCE = ["fsdp2", "expert_parallel", BY_SEQUENCE]
WHOLE = ["fsdp2", {"expert_parallel": {"expert_tensor_parallel": False}}, BY_SEQUENCE]
FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]

EXPERTS = replace(
    TINY,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=16,
    ep_size=2,
    seq_len=16,
    gradient_accumulation_steps=1,
)
CLIPPED = replace(EXPERTS, max_grad_norm=0.05)
STAGES = replace(CLIPPED, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=2)

ON_RANKS = {
    "alone": (2, replace(EXPERTS, num_experts_per_tok=3), ["tensor_parallel"]),
    "alone, by sequence, checkpointed": (
        2,
        replace(CLIPPED, gradient_accumulation_steps=2),
        [BY_SEQUENCE, "activation_checkpointing"],
    ),
    "with FSDP2, by sequence": (4, CLIPPED, ["fsdp2", BY_SEQUENCE]),
    "in a pipeline": (4, STAGES, [BY_SEQUENCE, "pipeline"]),
    "shared experts": (4, replace(EXPERTS, shared_expert_intermediate_size=None), SHARED),
    "shared experts, by sequence, accumulated": (
        4,
        replace(CLIPPED, gradient_accumulation_steps=2),
        SHARED_BY_SEQUENCE,
    ),
    "shared experts, copies of them sharded by rows": (
        8,
        replace(CLIPPED, num_experts=2, dp_size=4),
        SHARED_BY_SEQUENCE,
    ),
    "shared experts, in a pipeline, with sequences shared": (
        8,
        replace(STAGES, cp_size=2, dp_size=1),
        [*SHARED_BY_SEQUENCE, "context_parallel", "pipeline"],
    ),
    "whole experts, AdamW": (4, replace(CLIPPED, ep_size=4, optimizer="adamw"), WHOLE),
    "whole experts over the ranks of a layer alone": (4, EXPERTS, WHOLE),
    "whole experts, copies of them": (8, replace(CLIPPED, ep_size=4, dp_size=4), WHOLE),
    "whole experts of a width that the ranks do not divide": (
        4,
        replace(EXPERTS, ep_size=4, moe_intermediate_size=23, shared_expert_intermediate_size=None),
        WHOLE,
    ),
    "whole experts, in a pipeline": (8, replace(STAGES, ep_size=4), [*WHOLE, "pipeline"]),
}


@pytest.fixture(scope="module")
def pools():
    with ExitStack() as stack:
        yield Pools(stack)


def on(pools, step):
    """Return the call of a function of `on_rank` on real ranks, as many as the step has."""

    def call(function, **given):
        function = function if ":" in function else f"{on_rank.__name__}:{function}"
        return pools.pool(step.ranks).call(function, **given)

    return call


@pytest.mark.parametrize("case", ON_RANKS)
def test_real_ranks_with_uneven_routing_see_the_losses_and_gradients_of_one_device(case, pools):
    ranks, workload, techniques = ON_RANKS[case]
    step = sharded(techniques, workload)
    assert step.ranks == ranks
    call = on(pools, step)
    call("make", key="ours", step=step.described)
    check_on_ranks(step, call, "ours")
    call("drop", key="ours")


@pytest.mark.parametrize("techniques", [SHARED_BY_SEQUENCE, WHOLE], ids=str)
def test_in_bf16_they_see_its_losses(techniques, pools):
    """Rounding decides which expert a token takes, where two are nearly as likely, so gradients may jump."""
    step = sharded([*techniques, *FURTHER], EXPERTS)
    call = on(pools, step)
    call("make", key="ours", step=step.described)
    ours = mean_over_ranks(call("updates", key="ours", count=UPDATES_ON_RANKS))
    call("drop", key="ours")
    compare(ours, plain_losses(step, text_updates(step, UPDATES_ON_RANKS)), step.contract.relative)


@pytest.mark.parametrize(
    "techniques", [[BY_SEQUENCE], SHARED, [*SHARED_BY_SEQUENCE, *FURTHER], WHOLE], ids=str
)
def test_the_only_rank_of_a_group_is_right_too(techniques):
    check(sharded(techniques, EXPERTS))


LARGE = replace(
    SMALL,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=96,
    shared_expert_intermediate_size=64,
    ep_size=2,
    dp_size=2,
    gradient_accumulation_steps=1,
)
SET_UPS = {
    "alone": (replace(LARGE, shared_expert_intermediate_size=None), ["tensor_parallel"]),
    "alone, by sequence": (LARGE, [BY_SEQUENCE]),
    "with FSDP2": (LARGE, ["fsdp2", BY_SEQUENCE, "attention", "activation_checkpointing"]),
    "shared experts": (replace(LARGE, gradient_accumulation_steps=2), SHARED),
    "shared experts, by sequence, all": (
        replace(LARGE, dp_size=4, max_grad_norm=1.0, optimizer_impl="foreach"),
        [*SHARED_BY_SEQUENCE, *FURTHER],
    ),
    "whole experts": (replace(LARGE, ep_size=4), WHOLE),
    "whole experts, all": (replace(LARGE, dp_size=4, ep_size=4), [*WHOLE, *FURTHER]),
    "whole experts, in a pipeline, with sequences shared": (
        replace(LARGE, num_hidden_layers=4, pp_size=2, cp_size=2, gradient_accumulation_steps=2),
        [*WHOLE, "pipeline", "context_parallel"],
    ),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_equals_what_real_tensors_take(set_up):
    """Both with equal shares: a rank of a fake process group receives no values either."""
    workload, techniques = SET_UPS[set_up]
    step = sharded(techniques, workload)
    for rank in ranks_to_run(step):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize("techniques", [SHARED_BY_SEQUENCE, WHOLE, SHARED], ids=str)
def test_the_dry_run_equals_what_real_ranks_take_whose_routing_is_even(techniques, pools):
    step = sharded(techniques, replace(LARGE, optimizer="sgd_momentum"))
    call = on(pools, step)

    def measured_B(routing):
        return max(call("routed_on_rank:second_step_B", step=step.described, routing=routing))

    dry_B = dry_run(step, Device("host", measured=True, gloo=True), full=True).peak_B
    assert dry_B == pytest.approx(measured_B("even"), rel=3e-4)  # a thread may still have the counts of rows


def test_layers_are_repeated():
    step = sharded([*SHARED_BY_SEQUENCE, "attention"], replace(LARGE, num_hidden_layers=8))
    assert dry_run(step) == dry_run(step, full=True)


@pytest.mark.parametrize(
    ("techniques", "sizes"),
    [(["fsdp2", BY_SEQUENCE], {}), (SHARED_BY_SEQUENCE, {}), (WHOLE, {"ep_size": 4})],
    ids=str,
)
def test_all_ranks_together_have_the_parameters_once(techniques, sizes):
    """But for norms and the router, which ranks that share a layer have in full."""
    workload = replace(LARGE, dp_size=4, optimizer_impl="for_loop", **sizes)
    shape = workload.shape
    tables_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    twice = shape.num_hidden_layers * (2 + workload.num_experts) * shape.hidden_size + shape.hidden_size
    found_B = dry_run(sharded(techniques, workload)).by_kind_B["parameters"]
    assert found_B == pytest.approx(4 * (shape.parameters + twice) / 8 + tables_B, rel=1e-3)


def test_experts_that_are_spread_further_take_less():
    """The more ranks share experts, the fewer gathered parameters a layer of FSDP2 has."""
    workload = replace(LARGE, dp_size=4, num_experts=16, moe_intermediate_size=512, micro_batch_size=1)

    def communication_B(techniques, **sizes):
        step = sharded([*techniques, "activation_checkpointing"], replace(workload, **sizes))
        return dry_run(step).by_kind_B["communication"]

    none_B = communication_B(["fsdp2", BY_SEQUENCE])
    assert none_B > 1.5 * communication_B(SHARED_BY_SEQUENCE)
    assert communication_B(SHARED_BY_SEQUENCE) == pytest.approx(communication_B(WHOLE, ep_size=4), rel=0.05)


def test_each_way_of_sharing_has_a_communicator():
    def nccl_B(techniques, **sizes):
        return outside_allocator_B(sharded(techniques, replace(EXPERTS, **sizes)))["nccl_buffers"]

    assert nccl_B(SHARED) == 3 * NCCL_OF_TWO_B  # those that shard, share each layer, share experts
    assert nccl_B(WHOLE, ep_size=4) == 2 * NCCL_OF_TWO_B + NCCL_OF_MORE_B
    assert nccl_B(WHOLE, ep_size=4, dp_size=4) == 2 * NCCL_OF_TWO_B + 2 * NCCL_OF_MORE_B


def test_the_search_keeps_the_sizes():
    shared = Subject(sharded(SHARED, replace(EXPERTS, dp_size=4)), 80e9)
    assert list(allowed_ranks(shared))[:3] == [4, 8, 12]
    whole = Subject(sharded(WHOLE, replace(EXPERTS, ep_size=4)), 80e9)
    assert list(allowed_ranks(whole))[:3] == [4, 8, 12]
    alone = Subject(sharded("tensor_parallel", replace(EXPERTS, num_key_value_heads=4)), 80e9)
    assert list(allowed_ranks(alone)) == [1, 2, 4]


@pytest.mark.parametrize(
    ("techniques", "changes", "words"),
    [
        (["tensor_parallel"], {"moe_intermediate_size": 23}, "does not divide moe_intermediate_size=23"),
        (
            ["tensor_parallel"],
            {"shared_expert_intermediate_size": 23},
            "tp_size=2 does not divide shared_expert_intermediate_size=23",
        ),
        (["expert_parallel", "tensor_parallel"], {}, "expert_parallel with tensor_parallel needs fsdp2"),
        (SHARED, {"ep_size": 4}, "ep_size=4 does not divide dp_size=2"),
        (WHOLE, {"num_experts": 8, "ep_size": 8}, r"ep_size=8 does not divide dp_size=2 \* tp_size=2"),
        (
            ["fsdp2", {"expert_parallel": {"expert_tensor_parallel": False}}, "tensor_parallel"],
            {},
            "needs tensor_parallel with sequence_parallel=True",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_shared_so_is_refused_in_one_line(techniques, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        build_step(replace(EXPERTS, **changes), techniques)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300
