"""Context parallelism: correct on real ranks; dry runs of one rank compared with real tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from offload_ranks import Pools
from real_ranks import CLIPPED, GPT, SMALL, TINY, dry_and_measured, sharded
from small_steps import CUDA

from harness.records import Note, Unavailable
from suites.memory import suite as memory
from suites.memory.formulas import estimates
from suites.memory.subject import Subject
from suites.memory.thresholds import allowed_ranks
from suites.training import on_rank
from suites.training.correctness import check, check_on_ranks, text_updates
from suites.training.declared import ContextParallelSettings
from suites.training.dry_run.dry_run import dry_run
from suites.training.dry_run.largest_batch import outside_allocator_B
from suites.training.models.model import Transformer
from suites.training.techniques import build_step, context_parallel

MESH = ["fsdp2", "context_parallel"]
FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]
EVEN = replace(TINY, seq_len=16, cp_size=2)
EVEN_GPT = replace(GPT, seq_len=16, cp_size=2, bias=False)
"""A key's bias has no gradient but rounding: softmax is unchanged by it."""

ON_RANKS = {
    "two, momentum, accumulated": (2, EVEN, ["context_parallel"]),
    "two, fp32 gradients": (2, EVEN, ["context_parallel", {"mixed_precision": {"gradients": "fp32"}}]),
    "four, momentum, clipped, flash, checkpointed": (
        4,
        replace(CLIPPED, seq_len=16, cp_size=4),
        ["context_parallel", "attention", "activation_checkpointing"],
    ),
    "mesh, momentum, accumulated, reduced with the last": (
        4,
        EVEN,
        ["context_parallel", {"fsdp2": {"reduce_every_micro_batch": False}}],
    ),
    "two, per operation": (
        2,
        EVEN,
        ["context_parallel", "attention", {"activation_checkpointing": {"mode": "per_op"}}],
    ),
    "mesh, selective": (
        4,
        replace(EVEN, gradient_accumulation_steps=1),
        [*MESH, {"activation_checkpointing": {"mode": "selective"}}],
    ),
    "mesh, tied, learned positions, clipped, flash": (4, EVEN_GPT, [*MESH, "attention"]),
    "mesh, sharded in rows, on the host, mixed, loss in chunks": (
        4,
        EVEN,
        [
            "context_parallel",
            {"fsdp2": {"shard_within": 2, "cpu_offload": True}},
            "mixed_precision",
            {"loss": {"chunks": 2}},
        ],
    ),
}


@pytest.fixture(scope="module")
def pools():
    with ExitStack() as stack:
        yield Pools(stack)


def checked(pools, ranks, step):
    def call(function, **given):
        return pools.pool(ranks).call(f"{on_rank.__name__}:{function}", **given)

    call("make", key="ours", step=step.described)
    try:
        return check_on_ranks(step, call, "ours")
    finally:
        call("drop", key="ours")


@pytest.mark.parametrize("case", ON_RANKS)
def test_real_ranks_see_the_losses_and_gradients_of_full_sequences_on_one_device(case, pools):
    ranks, workload, techniques = ON_RANKS[case]
    step = sharded(techniques, workload)
    assert step.ranks == ranks
    checked(pools, ranks, step)


def test_the_only_rank_of_a_group_is_right_too():
    check(sharded(["context_parallel", *FURTHER], EVEN))
    check(sharded(MESH, EVEN_GPT))


def test_rows_share_each_sequence_and_take_different_data():
    step = sharded(MESH, replace(SMALL, dp_size=3, cp_size=2))
    assert (step.ranks, step.context_ranks, step.data_ranks, step.shard_ranks) == (6, 2, 3, 6)
    assert [len(batches) for batches in text_updates(step, 2)] == [6, 6]  # two micro-batches each
    assert memory.tokens_per_step(Subject(step, 80e9)) == 6 * 2 * 64


ONCE = replace(SMALL, num_hidden_layers=2, gradient_accumulation_steps=1, cp_size=2)

SET_UPS = {
    "alone, four, accumulated, clipped, foreach": (
        replace(SMALL, cp_size=4, max_grad_norm=1.0, optimizer_impl="foreach"),
        ["context_parallel", "attention"],
    ),
    "three rows of two, odd sizes, tied, biases, learned, dropout": (
        replace(
            EVEN_GPT,
            dp_size=3,
            hidden_size=120,
            intermediate_size=252,
            vocab_size=501,
            bias=True,
            dropout=0.1,
        ),
        MESH,
    ),
    "mesh, accumulated, all": (replace(SMALL, cp_size=2), [*MESH, *FURTHER]),
    "mesh in rows of four, resharded to two": (
        replace(SMALL, cp_size=4, dp_size=1),
        ["context_parallel", {"fsdp2": {"reshard_after_forward": 2}}, "attention"],
    ),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_equals_what_real_tensors_take(set_up):
    workload, techniques = SET_UPS[set_up]
    steps = 2 if "accumulated" in set_up else 1  # what is kept from step to step shows
    dry, measured_B = dry_and_measured(sharded(techniques, workload), steady_steps=steps)
    assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


def test_a_variant_without_the_technique_notes_that_cp_size_changes_nothing():
    def noted(techniques):
        subject = Subject(sharded(techniques, EVEN), 80e9, measurable=True)
        return [
            one.text for one in memory.sample(subject) if isinstance(one, Note) and "cp_size=2" in one.text
        ]

    assert noted(["fsdp2"]) == ["cp_size=2 changes nothing: this variant has no context_parallel"]
    assert noted(MESH) == []


@pytest.mark.parametrize(
    "further",
    [
        ["mixed_precision", "attention"],
        ["attention"],
        ["attention", {"activation_checkpointing": {"mode": "per_op"}}],
    ],
    ids=str,
)
def test_fused_attention_on_cuda_makes_no_mask(further):
    """Bytes per layer of a longer sequence grow with its length, not with its square."""
    workload = replace(ONCE, micro_batch_size=1, max_position_embeddings=2**14, optimizer="sgd_momentum")

    def peak_B(length):
        step = sharded(["context_parallel", *further], replace(workload, seq_len=length))
        return dry_run(step, CUDA).peak_B

    shorter_B, longer_B, longest_B = map(peak_B, (2**12, 2**13, 2**14))
    assert longest_B - longer_B == pytest.approx(2 * (longer_B - shorter_B), rel=0.01)


def test_weights_are_replicated_alone_and_sharded_over_all_ranks_of_a_mesh():
    workload = replace(ONCE, dp_size=4, optimizer_impl="for_loop")
    parameters = memory.count_model(Subject(sharded(MESH, workload), 80e9)).parameters
    buffers_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    for techniques, ranks in ((["context_parallel"], 1), (MESH, 8)):
        run = dry_run(sharded(techniques, workload))
        assert run.by_kind_B["parameters"] == 4 * parameters // ranks + buffers_B


def test_formulas_divide_activations_by_cp_size_and_name_what_they_leave_out():
    def by_method(techniques, **sizes):
        step = sharded(techniques, replace(ONCE, **sizes))
        subject = Subject(step, 80e9)
        return {one.method: one for one in estimates(subject, memory.count_model(subject))}

    plain, alone, mesh = by_method([]), by_method(["context_parallel"]), by_method(MESH, dp_size=4)
    states_B = plain["states_16"].peak_B
    assert (alone["states_16"].peak_B, mesh["states_16"].peak_B) == (states_B, states_B / 8)
    activations_B = plain["korthikanti"].peak_B - states_B
    assert alone["korthikanti"].peak_B == pytest.approx(states_B + activations_B / 2)
    assert "keys and values by cp_size" in alone["korthikanti"].reason
    assert alone["rule_40x"].peak_B is None
    assert mesh["rule_40x"].peak_B == pytest.approx(plain["rule_40x"].peak_B / 8)


def test_a_mesh_has_a_communicator_for_its_rows_and_one_for_all_ranks():
    def nccl_B(techniques, **sizes):
        return outside_allocator_B(sharded(techniques, replace(SMALL, **sizes)))["nccl_buffers"]

    MiB = 1024**2
    assert nccl_B(["context_parallel"], cp_size=2) == 544 * MiB
    assert nccl_B(MESH, dp_size=2, cp_size=2) == (688 + 544) * MiB
    assert nccl_B(MESH, dp_size=1, cp_size=2) == 2 * 544 * MiB


def test_hybrid_sharding_has_a_communicator_for_the_group_and_one_between_groups():
    hybrid = sharded([{"fsdp2": {"shard_within": 4}}], replace(SMALL, dp_size=8))
    assert outside_allocator_B(hybrid)["nccl_buffers"] == (688 + 544) * 1024**2
    assert list(allowed_ranks(Subject(hybrid, 80e9)))[:3] == [4, 8, 12]


def test_the_search_keeps_to_ranks_that_the_groups_divide():
    step = sharded([{"fsdp2": {"reshard_after_forward": 2}}], replace(SMALL, dp_size=4))
    assert list(allowed_ranks(Subject(step, 80e9)))[:3] == [2, 4, 6]
    with pytest.raises(ValueError, match="should be a factor of 3"):  # torch's own refusal
        dry_run(replace(step, ranks=3))


def test_groups_of_fsdp2_divide_all_ranks_of_the_mesh():
    workload = replace(EVEN, seq_len=64, dp_size=1, cp_size=8)
    for settings in ({"shard_within": 2}, {"reshard_after_forward": 4}):
        assert sharded(["context_parallel", {"fsdp2": settings}], workload).ranks == 8
    for settings, words in (
        ({"shard_within": 3}, "shard_within=3 does not divide the 8 ranks"),
        ({"reshard_after_forward": 3}, r"or a number of ranks \(2, 4\)"),
    ):
        with pytest.raises(Unavailable, match=words):
            sharded(["context_parallel", {"fsdp2": settings}], workload)


def test_the_search_varies_the_rows():
    subject = Subject(sharded(MESH, replace(SMALL, dp_size=3, cp_size=2)), 80e9)
    assert list(allowed_ranks(subject))[:4] == [2, 4, 6, 8]
    alone = Subject(sharded("context_parallel", replace(SMALL, seq_len=24, cp_size=2)), 80e9)
    assert list(allowed_ranks(alone)) == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize("other", ["ddp", "fsdp1", "zero", "local_sgd", "host_update", "compile"])
def test_what_it_excludes_is_refused(other):
    with pytest.raises(Unavailable, match=f"context_parallel does not combine with {other}"):
        sharded(["context_parallel", other], EVEN)


@pytest.mark.parametrize(
    ("further", "changes", "words"),
    [
        ([], {"cp_size": 1}, "needs several ranks per sequence, and this workload has cp_size=1"),
        ([], {"seq_len": 18}, r"seq_len=18 must be a multiple of 2 \* cp_size=4"),
        ([], {"cp_size": 3}, r"seq_len=16 must be a multiple of 2 \* cp_size=6"),
        (["optimizer_in_backward"], {"gradient_accumulation_steps": 1}, "list fsdp2 too"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_in_one_line(further, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        build_step(replace(EVEN, **changes), ["context_parallel", *further])
    assert "\n" not in str(caught.value)


def test_other_models_and_other_attentions_are_refused():
    other = replace(EVEN, model="my_models:make")
    reason = context_parallel.applies_to(other, ContextParallelSettings())
    assert "changes the attention of suites.training.models.model alone" in reason
    step = sharded("context_parallel", EVEN)
    model = Transformer(EVEN.shape, functions={"attention": torch.nn.functional.scaled_dot_product_attention})
    with pytest.raises(Unavailable, match="does not know the causal mask"):
        step.wraps[-1](model, None)
