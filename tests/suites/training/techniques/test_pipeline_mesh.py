"""FSDP2 in a pipeline: correct on real ranks; dry runs of both ends compared with real tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from offload_ranks import Pools
from real_ranks import GPT, SMALL, TINY, dry_and_measured, sharded

from harness.records import Unavailable
from suites.memory import suite as memory
from suites.memory.formulas import estimates
from suites.memory.subject import Subject
from suites.memory.thresholds import allowed_ranks
from suites.training import on_rank
from suites.training.correctness import check, check_on_ranks, text_updates
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import dry_run, ranks_to_run
from suites.training.dry_run.largest_batch import NCCL_OF_MORE_B, NCCL_OF_TWO_B, outside_allocator_B
from suites.training.techniques import build_step

MESH = ["pipeline", "fsdp2"]
INTERLEAVED = [{"pipeline": {"stages_per_rank": 2}}, "fsdp2"]
RESHARDED = ["pipeline", {"fsdp2": {"reshard_after_forward": True, "head": "apart"}}]
FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]

LLAMA = replace(TINY, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=3, max_grad_norm=0.05)
EVEN = replace(LLAMA, gradient_accumulation_steps=4)
LEARNED = replace(
    GPT, num_hidden_layers=2, pp_size=2, gradient_accumulation_steps=2, tie_word_embeddings=False, bias=False
)

ON_RANKS = {
    "1F1B, momentum, clipped": (LLAMA, MESH),
    "1F1B, resharded, AdamW, learned positions, clipped": (LEARNED, RESHARDED),
    "interleaved, momentum, clipped": (EVEN, INTERLEAVED),
    "interleaved, mixed, checkpointed, flash": (replace(EVEN, max_grad_norm=None), [*INTERLEAVED, *FURTHER]),
}


@pytest.fixture(scope="module")
def call():
    """Return the call of a function of `on_rank` on four real ranks."""
    with ExitStack() as stack:
        pools = Pools(stack)
        yield lambda function, **given: pools.pool(4).call(f"{on_rank.__name__}:{function}", **given)


@pytest.mark.parametrize("case", ON_RANKS)
def test_real_ranks_see_the_losses_and_gradients_of_one_device(case, call):
    workload, techniques = ON_RANKS[case]
    step = sharded(techniques, workload)
    assert step.ranks == 4
    call("make", key="ours", step=step.described)
    check_on_ranks(step, call, "ours")
    call("drop", key="ours")


@pytest.mark.parametrize("techniques", [MESH, INTERLEAVED], ids=["1F1B", "interleaved"])
def test_the_only_rank_of_a_group_is_right_too(techniques):
    check(sharded([*techniques, *FURTHER], EVEN))


def test_rows_are_pipelines_and_take_different_data():
    step = sharded(MESH, replace(LLAMA, dp_size=3))
    assert (step.ranks, step.pipeline_ranks, step.data_ranks, step.shard_ranks) == (6, 2, 3, 3)
    assert [len(batches) for batches in text_updates(step, 2)] == [9, 9]  # three micro-batches each
    assert memory.tokens_per_step(Subject(step, 80e9)) == 9 * 2 * LLAMA.seq_len
    assert ranks_to_run(step) == (0, 1)


FOUR = replace(SMALL, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=4)
SET_UPS = {
    "three columns, odd sizes, foreach, clipped": (
        replace(
            FOUR,
            dp_size=3,
            hidden_size=120,
            intermediate_size=252,
            vocab_size=501,
            optimizer_impl="foreach",
            max_grad_norm=1.0,
        ),
        MESH,
    ),
    "mixed, checkpointed, flash": (FOUR, [*MESH, *FURTHER]),
    "resharded, head apart, mixed": (FOUR, [*RESHARDED, "mixed_precision"]),
    "interleaved, mixed, clipped": (
        replace(FOUR, max_grad_norm=1.0),
        [*INTERLEAVED, "mixed_precision", "attention"],
    ),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_of_both_ends_equals_what_real_tensors_take(set_up):
    workload, techniques = SET_UPS[set_up]
    step = sharded(techniques, workload)
    for rank in range(2):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


def test_each_rank_shards_the_parameters_and_states_of_its_stages_alone():
    """Unreduced gradients of all micro-batches are those of a full stage, and so are gathered parameters."""
    step = sharded([*MESH, "attention"], replace(FOUR, dp_size=4, optimizer_impl="for_loop"))
    count = memory.count_model(Subject(step, 80e9)).parameters
    embedding = FOUR.vocab_size * FOUR.hidden_size
    norm, tables_B = FOUR.hidden_size, 2 * 4 * FOUR.max_position_embeddings * (FOUR.hidden_size // 4)
    layers = count - 2 * embedding - norm
    for rank, ends in enumerate((embedding, embedding + norm)):
        found_B, stage = dry_run(step, rank=rank).by_kind_B, layers // 2 + ends
        assert found_B["parameters"] == stage + tables_B
        assert found_B["optimizer_states"] == pytest.approx(2 * stage, abs=100)
        assert found_B["gradients"] == 4 * stage
        received_B = 4 * 4 * FOUR.micro_batch_size * FOUR.seq_len * FOUR.hidden_size
        assert found_B["communication"] == pytest.approx(4 * stage + received_B, abs=100)


@pytest.mark.parametrize(("techniques", "stages"), [(MESH, 2), (INTERLEAVED, 4)], ids=["1F1B", "interleaved"])
def test_layers_of_a_stage_are_repeated(techniques, stages, monkeypatch):
    """And few are traced: else full traces would be compared with themselves."""
    workload = replace(LEARNED, num_hidden_layers=6 * stages, max_grad_norm=None)
    step = sharded([*techniques, "attention"], workload)
    full = [dry_run(step, full=True, rank=rank) for rank in range(2)]
    depths = []
    trace = training_dry_run.trace

    def counted(step, device, layers, **first_step):
        depths.append(layers)
        return trace(step, device, layers, **first_step)

    monkeypatch.setattr(training_dry_run, "trace", counted)
    assert [dry_run(step, rank=rank) for rank in range(2)] == full
    assert depths == [3 * stages, 4 * stages, 5 * stages] * 2


def test_formulas_divide_the_states_of_the_first_stage_by_dp_size():
    def by_method(techniques, **sizes):
        step = sharded([*techniques, *FURTHER[:2]], replace(LLAMA, optimizer="adamw", **sizes))
        subject = Subject(step, 80e9)
        return {one.method: one for one in estimates(subject, memory.count_model(subject))}

    alone, mesh = by_method(["pipeline"]), by_method(MESH, dp_size=4)
    states_B = alone["states_16"].peak_B
    assert mesh["states_16"].peak_B == states_B / 4
    activations_B = alone["korthikanti"].peak_B - states_B
    assert mesh["korthikanti"].peak_B == pytest.approx(states_B / 4 + activations_B)
    assert mesh["rule_40x"].peak_B == alone["rule_40x"].peak_B / 4
    assert mesh["deepspeed"].peak_B is None
    for words in ("stay gathered until the backward pass", "reduced after the last micro-batch"):
        assert words in mesh["states_16"].reason


def test_each_dimension_of_the_mesh_has_a_communicator():
    def nccl_B(dp_size):
        return outside_allocator_B(sharded(MESH, replace(LLAMA, dp_size=dp_size)))["nccl_buffers"]

    assert nccl_B(1) == NCCL_OF_TWO_B
    assert nccl_B(4) == NCCL_OF_MORE_B + NCCL_OF_TWO_B


def test_the_search_varies_the_rows():
    subject = Subject(sharded(MESH, replace(LLAMA, dp_size=3)), 80e9)
    assert list(allowed_ranks(subject))[:4] == [2, 4, 6, 8]


@pytest.mark.parametrize("other", ["ddp", "fsdp1", "zero", "local_sgd", "host_update"])
def test_another_strategy_is_refused(other):
    with pytest.raises(Unavailable, match=f"pipeline does not combine with {other}: ranks form a mesh"):
        sharded(["pipeline", other], LLAMA)


@pytest.mark.parametrize(
    ("techniques", "changes", "words"),
    [
        (
            [{"fsdp2": {"cpu_offload": True}}],
            {},
            "fsdp2 with cpu_offload=True does not combine with pipeline",
        ),
        ([{"fsdp2": {"shard_within": 1}}], {}, "fsdp2 with shard_within=1 does not combine with pipeline"),
        ([{"fsdp2": {"reshard_after_forward": 2}}], {"dp_size": 4}, "to some ranks is not built for a mesh"),
    ],
    ids=str,
)
def test_what_a_mesh_cannot_have_is_refused_in_one_line(techniques, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        build_step(replace(LLAMA, **changes), ["pipeline", *techniques])
    assert "\n" not in str(caught.value)
