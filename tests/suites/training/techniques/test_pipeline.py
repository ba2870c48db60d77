"""Pipeline parallelism: correct on real ranks; the dry run of each rank compared with real tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

import pytest
from offload_ranks import Pools
from real_ranks import HOST, SMALL, TINY, dry_and_measured, sharded

from harness.instruments.memory.memory_timeline import OpSite
from harness.records import Note, Unavailable, WrongResult
from suites.memory import suite as memory
from suites.memory.formulas import estimates
from suites.memory.subject import Subject
from suites.memory.thresholds import allowed_ranks
from suites.training import on_rank
from suites.training.correctness import check, check_on_ranks, text_updates
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import DryRun, dry_run, ranks_to_run
from suites.training.dry_run.largest_batch import NCCL_OF_MORE_B, outside_allocator_B

FURTHER = ["mixed_precision", "attention", "activation_checkpointing"]
INTERLEAVED = {"pipeline": {"stages_per_rank": 2}}

LLAMA = replace(TINY, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=3)
GPT = replace(
    LLAMA,
    num_key_value_heads=4,
    norm="layer",
    mlp="gelu",
    position="learned",
    optimizer="adamw",
    max_grad_norm=0.05,
)

ON_RANKS = {
    "1F1B, momentum": (LLAMA, ["pipeline"]),
    "1F1B, AdamW, learned positions, clipped": (GPT, ["pipeline"]),
    "interleaved, clipped": (
        replace(LLAMA, gradient_accumulation_steps=4, max_grad_norm=0.05),
        [INTERLEAVED],
    ),
    "interleaved, mixed, checkpointed, flash": (
        replace(LLAMA, gradient_accumulation_steps=2),
        [INTERLEAVED, *FURTHER],
    ),
}


@pytest.fixture(scope="module")
def call():
    """Return the call of a function of `on_rank` on two real ranks."""
    with ExitStack() as stack:
        pools = Pools(stack)
        yield lambda function, **given: pools.pool(2).call(
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
    assert step.ranks == 2
    checked(call, step)


def test_wrong_gradients_on_a_rank_are_caught(call):
    call("wrong_on_ranks:spoil", times=3.0, apart=False)
    try:
        with pytest.raises(WrongResult, match="off by"):
            checked(call, sharded("pipeline", LLAMA))
    finally:
        call("wrong_on_ranks:mend")


@pytest.mark.parametrize("techniques", [["pipeline"], [INTERLEAVED]], ids=["1F1B", "interleaved"])
def test_the_only_rank_of_a_group_is_right_too(techniques):
    check(sharded([*techniques, *FURTHER], replace(LLAMA, gradient_accumulation_steps=2)))


def test_all_ranks_take_the_same_sequences():
    step = sharded("pipeline", LLAMA)
    assert (step.ranks, step.data_ranks, step.same_data_ranks) == (2, 1, 2)
    assert [len(batches) for batches in text_updates(step, 2)] == [3, 3]
    assert memory.tokens_per_step(Subject(step, 80e9)) == 3 * 2 * LLAMA.seq_len


FOUR = replace(SMALL, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=3)
SET_UPS = {
    "1F1B, mixed, checkpointed, flash": (FOUR, ["pipeline", *FURTHER]),
    "interleaved": (replace(FOUR, gradient_accumulation_steps=2), [INTERLEAVED, "attention"]),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_the_dry_run_of_each_rank_equals_what_real_ranks_take(set_up, call):
    workload, techniques = SET_UPS[set_up]
    step = sharded(techniques, workload)
    measured_B = call("pipeline_on_rank:second_step_B", step=step.described)
    walked_B = [dry_run(step, HOST._replace(gloo=True), full=True, rank=rank).peak_B for rank in range(2)]
    assert walked_B == pytest.approx(measured_B, rel=1e-4)


def test_so_it_does_on_three_ranks_that_send_nothing():
    """With clipping, and torch's foreach optimizer over bf16 parameters; the second rank is neither end."""
    workload = replace(
        FOUR, num_hidden_layers=3, pp_size=3, max_grad_norm=1.0, optimizer_impl="foreach", mlp="gelu"
    )
    step = sharded(["pipeline", "attention", {"mixed_precision": {"gradients": "bf16"}}], workload)
    for rank in range(3):
        walked, measured_B = dry_and_measured(step, rank=rank)
        assert walked.rank == rank
        assert walked.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize(
    ("techniques", "stages", "rank"), [("pipeline", 2, 0), (INTERLEAVED, 4, 1)], ids=["1F1B", "interleaved"]
)
def test_layers_of_a_stage_are_repeated(techniques, stages, rank, monkeypatch):
    """And few are traced: else full traces would be compared with themselves."""
    workload = replace(GPT, num_hidden_layers=5 * stages, gradient_accumulation_steps=2, max_grad_norm=None)
    step = sharded([techniques, "attention"], workload)
    full = dry_run(step, full=True, rank=rank)
    depths = []
    trace = training_dry_run.trace

    def counted(step, device, layers, **first_step):
        depths.append(layers)
        return trace(step, device, layers, **first_step)

    monkeypatch.setattr(training_dry_run, "trace", counted)
    assert dry_run(step, rank=rank) == full
    assert depths == [2 * stages, 3 * stages, 4 * stages]


@pytest.mark.parametrize(("vocab_size", "most"), [(64, 0), (20_000, 3)])
def test_the_rank_that_takes_the_most_is_reported(vocab_size, most):
    """The first with the most micro-batches in flight, or the last with the logits."""
    workload = replace(LLAMA, pp_size=4, gradient_accumulation_steps=4, vocab_size=vocab_size)
    step = sharded(["pipeline", "attention"], workload)
    assert ranks_to_run(step) == (0, 1, 3)
    found = dry_run(step)
    peaks_B = dict(found.peaks_B)
    assert found.rank == max(peaks_B, key=peaks_B.get) == most
    assert found.peak_B == peaks_B[most]
    assert dry_run(step, rank=2).peak_B < peaks_B[1]
    reported = memory.simulated(Subject(step, 80e9), lambda subject: found)
    notes = [one.text for one in reported if isinstance(one, Note)]
    assert any(f"this is rank {most} of 4; peaks of ranks: rank 0 " in note for note in notes)


def test_each_rank_has_its_stages_parameters_and_a_buffer_for_each_micro_batch():
    """Rank 0 receives gradients, rank 1 activations."""
    step = sharded(["pipeline", "attention"], FOUR)
    count = memory.count_model(Subject(step, 80e9)).parameters
    embedding = FOUR.vocab_size * FOUR.hidden_size
    norm, tables_B = FOUR.hidden_size, 2 * 4 * FOUR.max_position_embeddings * (FOUR.hidden_size // 4)
    layers = count - 2 * embedding - norm
    buffers_B = 3 * 4 * FOUR.micro_batch_size * FOUR.seq_len * FOUR.hidden_size
    for rank, ends in enumerate((embedding, embedding + norm)):
        found_B = dry_run(step, rank=rank).by_kind_B
        assert found_B["parameters"] == 4 * (layers // 2 + ends) + tables_B
        assert found_B["communication"] == pytest.approx(buffers_B, abs=16)


@pytest.mark.parametrize(
    ("techniques", "changes", "words"),
    [
        ([], {"pp_size": 1}, "pp_size=1 is a single stage"),
        ([], {"pp_size": 3}, "3 stages do not divide num_hidden_layers=4"),
        ([{"pipeline": {"stages_per_rank": 4}}], {}, "8 stages do not divide num_hidden_layers=4"),
        ([], {"pp_size": 4}, "pp_size=4 needs as many micro-batches, and gradient_accumulation_steps=3"),
        ([INTERLEAVED], {}, "a multiple of pp_size=2 micro-batches, and there are 3"),
        ([], {"tie_word_embeddings": True}, "the shared weight would be on the first and on the last stage"),
        (["optimizer_in_backward"], {}, "gradients cannot be accumulated"),
    ],
    ids=str,
)
def test_what_a_pipeline_cannot_have_is_refused_in_one_line(techniques, changes, words):
    with pytest.raises(Unavailable, match=words) as caught:
        sharded(["pipeline", *techniques], replace(LLAMA, **changes))
    assert "\n" not in str(caught.value)


def test_stages_without_a_pipeline_are_refused_and_one_rank_ignores_them():
    with pytest.raises(Unavailable, match="pp_size=2 needs the technique pipeline; else set pp_size=1"):
        sharded("fsdp2", LLAMA)
    alone = Subject(sharded([], LLAMA), 80e9)
    assert alone.step.ranks == 1
    assert Note("pp_size=2 changes nothing: this variant has no pipeline") in islice(memory.sample(alone), 3)


def test_the_search_varies_the_stages():
    workload = replace(LLAMA, num_hidden_layers=12, gradient_accumulation_steps=8)
    assert list(allowed_ranks(Subject(sharded("pipeline", workload), 80e9))) == [1, 2, 3, 4, 6]
    assert list(allowed_ranks(Subject(sharded([INTERLEAVED], workload), 80e9))) == [1, 2]

    def peak_of(subject, reserved=True):
        assert subject.step.ranks == subject.step.pipeline_ranks
        return DryRun(200e9 / subject.step.ranks, {}, OpSite("", "", ()), None, None)

    needed = memory.thresholds(Subject(sharded("pipeline", workload), 80e9), None, peak_of)
    assert [one.value for one in needed] == [3, 4]


def test_a_pipeline_has_a_communicator():
    step = sharded("pipeline", replace(LLAMA, pp_size=4, gradient_accumulation_steps=4))
    assert outside_allocator_B(step)["nccl_buffers"] == NCCL_OF_MORE_B


def test_formulas_are_those_of_the_first_stage():
    """Megatron-LM's most loaded shard; with p micro-batches in flight activations are those of all layers."""
    workload = replace(
        LLAMA, num_hidden_layers=8, pp_size=4, gradient_accumulation_steps=8, optimizer="adamw"
    )
    plain, step = sharded(FURTHER[:2], workload), sharded(["pipeline", *FURTHER[:2]], workload)
    interleaved = sharded([INTERLEAVED, *FURTHER[:2]], workload)
    counts = memory.count_model(Subject(step, 80e9))
    of = [
        {one.method: one.peak_B for one in estimates(Subject(each, 80e9), counts)}
        for each in (plain, step, interleaved)
    ]
    embedding = workload.vocab_size * workload.hidden_size
    shard = (counts.parameters - 2 * embedding) / 4 + embedding
    assert [of[1][name] for name in ("states_16", "states_18")] == [16 * shard, 18 * shard]
    layers_B = of[0]["korthikanti"] - of[0]["states_16"]
    assert of[1]["korthikanti"] - 16 * shard == pytest.approx(layers_B)
    assert of[2]["korthikanti"] - 16 * shard == pytest.approx(layers_B * (1 + 3 / 8))
    sb, h = workload.seq_len * workload.micro_batch_size, workload.hidden_size
    megatron_B = 8 * sb * (18 * h + 4 * workload.intermediate_size) + 4 * sb * (8 + h)
    assert of[1]["megatron"] - 18 * shard == pytest.approx(megatron_B)
    assert of[2]["megatron"] - 18 * shard == pytest.approx(megatron_B * (1 + 3 / 8))
    assert of[1]["rule_40x"] == of[0]["rule_40x"] / 4
    assert of[1]["deepspeed"] is None
