"""Expert parallelism: correct on real ranks; dry runs of one rank compared with real tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from offload_ranks import Pools
from real_ranks import SMALL, TINY, dry_and_measured, sharded

from harness.records import Unavailable
from suites.memory import suite as memory
from suites.memory.formulas import estimates
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
from suites.training.declared import ExpertParallelSettings
from suites.training.dry_run.dry_run import Device, dry_run, ranks_to_run
from suites.training.dry_run.largest_batch import NCCL_OF_MORE_B, NCCL_OF_TWO_B, outside_allocator_B
from suites.training.techniques import build_step, expert_parallel
from suites.training.techniques.expert_parallel import reordered

MESH = ["fsdp2", "expert_parallel"]
FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]

EXPERTS = replace(
    TINY,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=16,
    ep_size=2,
    dp_size=4,
    seq_len=16,
    gradient_accumulation_steps=1,
)
CLIPPED = replace(EXPERTS, max_grad_norm=0.05)
STAGES = replace(CLIPPED, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=2)

ON_RANKS = {
    "alone, momentum, accumulated": (2, replace(EXPERTS, gradient_accumulation_steps=2), ["expert_parallel"]),
    "alone, four, odd, checkpointed": (
        4,
        replace(EXPERTS, ep_size=4, micro_batch_size=3, seq_len=17),
        ["expert_parallel", "activation_checkpointing"],
    ),
    "alone, AdamW, foreach, clipped": (
        2,
        replace(CLIPPED, optimizer="adamw", optimizer_impl="foreach"),
        ["expert_parallel"],
    ),
    "mesh, accumulated, clipped": (4, replace(CLIPPED, gradient_accumulation_steps=2), MESH),
    "mesh, no rank has another's experts": (2, replace(EXPERTS, dp_size=2), MESH),
    "mesh, one expert per rank, resharded with the rest": (
        4,
        replace(EXPERTS, ep_size=4, shared_expert_intermediate_size=None, num_experts_per_tok=1),
        ["expert_parallel", {"fsdp2": {"reshard_after_forward": True, "head": "apart"}}],
    ),
    "mesh, more ranks than experts": (8, replace(CLIPPED, dp_size=8), MESH),
    "mesh, with sequences shared": (4, replace(CLIPPED, cp_size=2, dp_size=2), [*MESH, "context_parallel"]),
    "mesh, experts shared along sequences": (
        4,
        replace(CLIPPED, cp_size=2, dp_size=2, ep_size=4),
        [*MESH, "context_parallel", "attention"],
    ),
    "mesh, in a pipeline": (8, STAGES, [*MESH, "pipeline"]),
    "mesh, in a pipeline, with sequences shared": (
        8,
        replace(STAGES, cp_size=2, dp_size=2),
        [*MESH, "pipeline", "context_parallel", "attention", "activation_checkpointing"],
    ),
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


@pytest.mark.parametrize("techniques", [MESH, ["expert_parallel"]], ids=str)
def test_in_bf16_they_see_its_losses(techniques, pools):
    """Rounding decides which expert a token takes, where two are nearly as likely, so gradients may jump."""
    step = sharded([*techniques, *FURTHER], EXPERTS)
    call = on(pools, step)
    call("make", key="ours", step=step.described)
    ours = mean_over_ranks(call("updates", key="ours", count=UPDATES_ON_RANKS))
    call("drop", key="ours")
    compare(ours, plain_losses(step, text_updates(step, UPDATES_ON_RANKS)), step.contract.relative)


@pytest.mark.parametrize("techniques", [["expert_parallel"], MESH, [*MESH, *FURTHER]], ids=str)
def test_the_only_rank_of_a_group_is_right_too(techniques):
    check(sharded(techniques, EXPERTS))


def test_ranks_take_different_data():
    step = sharded(MESH, replace(EXPERTS, dp_size=4))
    assert (step.ranks, step.expert_ranks, step.data_ranks, step.shard_ranks) == (4, 2, 4, 4)
    assert [len(batches) for batches in text_updates(step, 1)] == [4]
    assert memory.tokens_per_step(Subject(step, 80e9)) == 4 * 2 * 16


def test_rows_by_rank_become_rows_by_expert_and_back():
    rows = torch.arange(10.0).view(10, 1)
    sizes = [[1, 2, 0], [3, 0, 4]]
    by_expert = reordered(rows, sizes)
    assert by_expert.flatten().tolist() == [0, 3, 4, 5, 1, 2, 6, 7, 8, 9]
    assert torch.equal(reordered(by_expert, list(zip(*sizes, strict=True))), rows)


LARGE = replace(
    SMALL,
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=96,
    shared_expert_intermediate_size=64,
    ep_size=2,
    dp_size=4,
    gradient_accumulation_steps=1,
)
SET_UPS = {
    "alone": (LARGE, ["expert_parallel"]),
    "mesh, accumulated": (replace(LARGE, gradient_accumulation_steps=2), MESH),
    "mesh, odd, clipped, foreach": (
        replace(
            LARGE, hidden_size=120, moe_intermediate_size=94, max_grad_norm=1.0, optimizer_impl="foreach"
        ),
        MESH,
    ),
    "mesh, all": (
        replace(LARGE, ep_size=3, dp_size=6, shared_expert_intermediate_size=None),
        [*MESH, *FURTHER],
    ),
    "mesh, with sequences shared": (replace(LARGE, cp_size=2), [*MESH, "context_parallel"]),
    "mesh, more ranks than experts": (replace(LARGE, num_experts=4, dp_size=16), MESH),
    "mesh, in a pipeline": (
        replace(LARGE, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=2, max_grad_norm=1.0),
        [*MESH, "pipeline", "mixed_precision"],
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


@pytest.mark.parametrize("techniques", [["expert_parallel"], MESH], ids=str)
def test_the_dry_run_equals_what_real_ranks_take_whose_routing_is_even(techniques, pools):
    step = sharded(techniques, replace(LARGE, num_experts=8, dp_size=2, optimizer="sgd_momentum"))
    call = on(pools, step)

    def measured_B(routing):
        return max(call("routed_on_rank:second_step_B", step=step.described, routing=routing))

    dry_B = dry_run(step, Device("host", measured=True, gloo=True), full=True).peak_B
    assert dry_B == pytest.approx(measured_B("even"), rel=1e-4)
    assert dry_B < measured_B("own") < measured_B("first")


def test_layers_are_repeated():
    step = sharded([*MESH, "attention"], replace(LARGE, num_hidden_layers=8))
    assert dry_run(step) == dry_run(step, full=True)


def test_a_rank_has_its_share_of_experts_and_of_the_rest():
    """Alone it has all of the rest; on a mesh, experts and the rest are spread over all ranks."""
    workload = replace(LARGE, num_experts=8, optimizer_impl="for_loop")
    shape = workload.shape
    tables_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    rest = shape.parameters - shape.expert_parameters
    alone = dry_run(sharded(["expert_parallel"], workload)).by_kind_B["parameters"]
    assert alone == 4 * (rest + shape.expert_parameters // 2) + tables_B
    mesh = dry_run(sharded(MESH, workload)).by_kind_B["parameters"]
    norms = 4 * shape.num_hidden_layers * shape.hidden_size
    assert mesh == pytest.approx(4 * shape.parameters / 4 + tables_B, abs=norms)


def test_more_ranks_than_experts_shard_the_rows_of_each():
    """Else one of eight ranks would have all of an expert, and six of them nothing."""
    workload = replace(LARGE, num_experts=4, dp_size=16, optimizer_impl="for_loop")
    shape = workload.shape
    tables_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    found_B = dry_run(sharded(MESH, workload)).by_kind_B["parameters"]
    assert found_B == pytest.approx(4 * shape.parameters / 16 + tables_B, rel=0.02)


def test_fsdp2_gathers_the_experts_of_a_rank_alone():
    """A layer's gathered experts shrink with ep_size; all else stays."""
    workload = replace(LARGE, dp_size=8, num_experts=16, moe_intermediate_size=512, micro_batch_size=1)

    def communication_B(techniques, ep_size=1):
        step = sharded([*techniques, "activation_checkpointing"], replace(workload, ep_size=ep_size))
        return dry_run(step).by_kind_B["communication"]

    none_B, two_B, four_B = communication_B(["fsdp2"]), communication_B(MESH, 2), communication_B(MESH, 4)
    assert none_B > 1.5 * two_B > 1.5 * 1.5 * four_B


def test_formulas_know_where_experts_are():
    def by_method(techniques, **sizes):
        step = sharded(techniques, replace(LARGE, **sizes))
        subject = Subject(step, 80e9)
        return {one.method: one for one in estimates(subject, memory.count_model(subject))}

    plain, alone, mesh = by_method([]), by_method(["expert_parallel"]), by_method(MESH)
    shape = LARGE.shape
    assert plain["states_16"].peak_B == 16 * shape.parameters
    assert alone["states_16"].peak_B == 16 * (shape.parameters - shape.expert_parameters / 2)
    assert mesh["states_16"].peak_B == 16 * shape.parameters / 4
    assert alone["rule_40x"].peak_B is None
    for estimated in (plain, alone, mesh):
        assert "dense MLP" in estimated["korthikanti"].reason


def test_each_way_of_sharing_has_a_communicator():
    def nccl_B(techniques, **sizes):
        return outside_allocator_B(sharded(techniques, replace(EXPERTS, **sizes)))["nccl_buffers"]

    assert nccl_B(["expert_parallel"]) == NCCL_OF_TWO_B
    assert nccl_B(MESH) == NCCL_OF_MORE_B + 2 * NCCL_OF_TWO_B
    assert nccl_B(MESH, dp_size=2) == 2 * NCCL_OF_TWO_B


def test_the_search_keeps_ep_size():
    subject = Subject(sharded(MESH, EXPERTS), 80e9)
    assert list(allowed_ranks(subject))[:3] == [2, 4, 6]
    alone = Subject(sharded("expert_parallel", replace(EXPERTS, num_experts=6)), 80e9)
    assert list(allowed_ranks(alone)) == [1, 2, 3, 6]


@pytest.mark.parametrize("other", ["ddp", "fsdp1", "zero", "local_sgd", "host_update", "activation_offload"])
def test_what_it_excludes_is_refused(other):
    with pytest.raises(Unavailable, match=f"expert_parallel does not combine with {other}"):
        sharded(["expert_parallel", other], EXPERTS)


@pytest.mark.parametrize(
    ("further", "changes", "words"),
    [
        ([], {"num_experts": None}, "set num_experts for a mixture of experts"),
        ([], {"ep_size": 1}, "needs several ranks per layer's experts, and this workload has ep_size=1"),
        ([], {"ep_size": 3}, "ep_size=3 does not divide num_experts=4"),
        (["fsdp2"], {"dp_size": 3}, "ep_size=2 does not divide dp_size=3"),
        (["context_parallel"], {"cp_size": 2}, "expert_parallel with context_parallel needs fsdp2"),
        (["optimizer_in_backward"], {}, "list fsdp2 too"),
        ([{"fsdp2": {"shard_within": 2}}], {}, "shard_within=2 does not combine with expert_parallel"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_in_one_line(further, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        build_step(replace(EXPERTS, **changes), ["expert_parallel", *further])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_another_models_experts_are_refused():
    reason = expert_parallel.applies_to(replace(EXPERTS, model="my_models:make"), ExpertParallelSettings())
    assert "not another model's" in reason
