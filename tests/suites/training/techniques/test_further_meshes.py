"""Three and more techniques on one mesh: correct on real ranks; dry runs compared with real tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from offload_ranks import Pools
from real_ranks import SMALL, TINY, dry_and_measured, sharded

from harness.records import Unavailable
from suites.memory import suite as memory
from suites.memory.formulas import estimates
from suites.memory.subject import Subject
from suites.memory.thresholds import allowed_ranks
from suites.training import on_rank
from suites.training.correctness import check, check_on_ranks, text_updates
from suites.training.dry_run.dry_run import dry_run, ranks_to_run
from suites.training.dry_run.largest_batch import NCCL_OF_MORE_B, NCCL_OF_TWO_B, outside_allocator_B
from suites.training.techniques import build_step

FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]
BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
INTERLEAVED = {"pipeline": {"stages_per_rank": 2}}

ONCE = replace(TINY, gradient_accumulation_steps=1, seq_len=16, max_grad_norm=0.05)
STAGES = replace(ONCE, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=2)

ON_RANKS = {
    "tensor and context, one row": (
        4,
        replace(ONCE, cp_size=2, dp_size=1),
        ["fsdp2", "tensor_parallel", "context_parallel"],
    ),
    "tensor and pipeline, without FSDP2": (4, STAGES, ["tensor_parallel", "pipeline"]),
    "by sequence and context, flash": (
        8,
        replace(ONCE, cp_size=2),
        ["fsdp2", BY_SEQUENCE, "context_parallel", "attention"],
    ),
    "by sequence and interleaved, mixed, checkpointed, flash": (
        8,
        replace(STAGES, max_grad_norm=None),
        ["fsdp2", BY_SEQUENCE, INTERLEAVED, *FURTHER],
    ),
    "tensor and pipeline": (8, STAGES, ["fsdp2", "tensor_parallel", "pipeline"]),
    "context and pipeline, mean over sequences": (
        8,
        replace(STAGES, cp_size=2),
        ["fsdp2", "context_parallel", "pipeline"],
    ),
    "by sequence, context and pipeline": (
        8,
        replace(STAGES, cp_size=2, dp_size=1),
        ["fsdp2", BY_SEQUENCE, "context_parallel", "pipeline", "attention"],
    ),
}


@pytest.fixture(scope="module")
def pools():
    with ExitStack() as stack:
        yield Pools(stack)


@pytest.mark.parametrize("case", ON_RANKS)
def test_real_ranks_of_a_mesh_see_the_losses_and_gradients_of_one_device(case, pools):
    ranks, workload, techniques = ON_RANKS[case]
    step = sharded(techniques, workload)
    assert step.ranks == ranks

    def call(function, **given):
        return pools.pool(ranks).call(f"{on_rank.__name__}:{function}", **given)

    call("make", key="ours", step=step.described)
    check_on_ranks(step, call, "ours")
    call("drop", key="ours")


LARGE = replace(SMALL, gradient_accumulation_steps=1)
DEEP = replace(SMALL, num_hidden_layers=4, pp_size=2)
SET_UPS = {
    "tensor and context": (replace(LARGE, cp_size=2), ["fsdp2", "tensor_parallel", "context_parallel"]),
    "tensor and pipeline": (DEEP, ["fsdp2", "tensor_parallel", "pipeline"]),
    "by sequence and context, all": (
        replace(LARGE, cp_size=2, dp_size=3, max_grad_norm=1.0, optimizer_impl="foreach"),
        ["fsdp2", BY_SEQUENCE, "context_parallel", *FURTHER],
    ),
    "by sequence and pipeline, all": (
        replace(DEEP, max_grad_norm=1.0, optimizer_impl="foreach"),
        ["fsdp2", BY_SEQUENCE, "pipeline", *FURTHER],
    ),
    "context and pipeline": (replace(DEEP, cp_size=2), ["fsdp2", "context_parallel", "pipeline"]),
    "by sequence, context and interleaved, all": (
        replace(DEEP, cp_size=2),
        ["fsdp2", BY_SEQUENCE, "context_parallel", INTERLEAVED, *FURTHER],
    ),
    "tensor and pipeline, without FSDP2": (DEEP, ["tensor_parallel", "pipeline"]),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_of_a_rank_of_each_stage_equals_what_real_tensors_take(set_up):
    workload, techniques = SET_UPS[set_up]
    step = sharded(techniques, workload)
    for rank in ranks_to_run(step):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


FOUR = ["fsdp2", "tensor_parallel", "context_parallel", "pipeline"]


def test_the_only_rank_of_a_group_is_right_too():
    check(sharded([*FOUR, *FURTHER], replace(STAGES, cp_size=2)))


def test_ranks_of_a_row_take_the_same_data_and_one_of_each_stage_is_run():
    step = sharded(FOUR, replace(DEEP, dp_size=3, cp_size=2, pp_size=2, tp_size=2))
    assert (step.ranks, step.same_data_ranks, step.data_ranks, step.shard_ranks) == (24, 8, 3, 6)
    assert [len(batches) for batches in text_updates(step, 1)] == [6]  # two micro-batches each
    assert memory.tokens_per_step(Subject(step, 80e9)) == 6 * 2 * 64
    assert ranks_to_run(step) == (0, 2)


def test_a_rank_has_its_share_of_the_matrices_of_its_stage():
    workload = replace(DEEP, dp_size=2, cp_size=2, optimizer_impl="for_loop")
    step = sharded(FOUR, workload)
    norms = 2 * workload.num_hidden_layers * workload.hidden_size
    embedding = workload.vocab_size * workload.hidden_size
    layers = memory.count_model(Subject(step, 80e9)).parameters - 2 * embedding - workload.hidden_size
    matrices = (layers - norms) // 2 + embedding
    tables_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    found_B = dry_run(step, rank=0).by_kind_B["parameters"]
    assert found_B == 4 * (matrices // (4 * 2) + norms // 2 // 4) + tables_B


def test_each_dimension_has_a_communicator():
    def nccl_B(techniques, **sizes):
        return outside_allocator_B(sharded(techniques, replace(STAGES, **sizes)))["nccl_buffers"]

    assert nccl_B(FOUR, dp_size=2, cp_size=2) == NCCL_OF_MORE_B + 3 * NCCL_OF_TWO_B
    assert nccl_B(["tensor_parallel", "pipeline"]) == 2 * NCCL_OF_TWO_B


def test_the_search_varies_the_rows():
    subject = Subject(sharded(FOUR, replace(STAGES, cp_size=2)), 80e9)
    assert list(allowed_ranks(subject))[:3] == [8, 16, 24]
    alone = Subject(sharded(["tensor_parallel", "pipeline"], STAGES), 80e9)
    assert list(allowed_ranks(alone)) == [4]


def test_formulas_divide_states_and_activations_by_all_dimensions():
    def by_method(techniques, **sizes):
        workload = replace(STAGES, optimizer="adamw", **sizes)
        subject = Subject(sharded([*techniques, "attention"], workload), 80e9)
        return {one.method: one.peak_B for one in estimates(subject, memory.count_model(subject))}

    fewer, mesh = by_method(["pipeline"]), by_method(FOUR, dp_size=2, cp_size=2)
    assert mesh["states_16"] == pytest.approx(fewer["states_16"] / (2 * 4))
    assert mesh["korthikanti"] < fewer["korthikanti"] / 2


@pytest.mark.parametrize(
    ("techniques", "changes", "words"),
    [
        (["context_parallel", "tensor_parallel"], {}, "context_parallel with tensor_parallel needs fsdp2"),
        (["context_parallel", "pipeline"], {}, "context_parallel with pipeline needs fsdp2"),
        (
            ["fsdp2", BY_SEQUENCE, "context_parallel"],
            {
                "tp_size": 4,
                "num_key_value_heads": 4,
                "seq_len": 24,
                "cp_size": 4,
                "max_position_embeddings": 32,
            },
            "does not divide the 6 tokens of a sequence that each of cp_size=4 ranks takes",
        ),
        (
            [{"fsdp2": {"cpu_offload": True}}, "tensor_parallel", "pipeline"],
            {},
            "fsdp2 with cpu_offload=True does not combine with tensor_parallel",
        ),
        (
            [{"fsdp2": {"shard_within": 2}}, "context_parallel", "pipeline"],
            {},
            "fsdp2 with shard_within=2 does not combine with pipeline",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_in_one_line(techniques, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        build_step(replace(STAGES, **{"cp_size": 2, **changes}), techniques)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300
