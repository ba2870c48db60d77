"""What pipelines alone have: the rank that takes the most, repeated layers of stages, formulas, a search."""

from dataclasses import replace

import pytest
from real_ranks import GPT, SMALL, TINY, sharded

from suites.memory import suite as memory
from suites.memory.formulas import estimates
from suites.memory.subject import Subject
from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import dry_run

INTERLEAVED = {"pipeline": {"stages_per_rank": 2}}
LLAMA = replace(TINY, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=3)
LEARNED = replace(GPT, pp_size=2, gradient_accumulation_steps=2, tie_word_embeddings=False, bias=False)


@pytest.mark.parametrize(
    ("techniques", "stages", "fewest", "rank"),
    [(["pipeline"], 2, 2, 0), ([INTERLEAVED, "fsdp2"], 4, 3, 1)],
    ids=["1F1B", "interleaved and sharded"],
)
def test_layers_of_a_stage_are_repeated(techniques, stages, fewest, rank, monkeypatch):
    """And few are traced: else full traces would be compared with themselves."""
    workload = replace(LEARNED, num_hidden_layers=(fewest + 3) * stages)
    step = sharded([*techniques, "attention"], workload)
    full = dry_run(step, full=True, rank=rank)
    depths = []
    trace = training_dry_run.trace

    def counted(step, device, layers, **first_step):
        depths.append(layers)
        return trace(step, device, layers, **first_step)

    monkeypatch.setattr(training_dry_run, "trace", counted)
    assert dry_run(step, rank=rank) == full
    assert depths == [stages * layers for layers in range(fewest, fewest + 3)]


@pytest.mark.parametrize(("vocab_size", "most"), [(64, 0), (20_000, 3)])
def test_the_rank_that_takes_the_most_is_reported(vocab_size, most):
    """The first with the most micro-batches in flight, or the last with the logits."""
    workload = replace(LLAMA, pp_size=4, gradient_accumulation_steps=4, vocab_size=vocab_size)
    step = sharded(["pipeline", "attention"], workload)
    found = dry_run(step)
    peaks_B = dict(found.peaks_B)
    assert found.rank == max(peaks_B, key=peaks_B.get) == most
    assert found.peak_B == peaks_B[most]
    assert dry_run(step, rank=2).peak_B < peaks_B[1]


@pytest.mark.parametrize("techniques", [["pipeline", "fsdp2"], ["pipeline"]], ids=["sharded", "alone"])
def test_a_rank_has_a_buffer_for_each_micro_batch(techniques):
    """Rank 0 receives gradients, rank 1 activations. Sharded, all of a stage's parameters stay gathered, and
    so do its gradients until the last micro-batch."""
    workload = replace(SMALL, num_hidden_layers=4, pp_size=2, dp_size=4, gradient_accumulation_steps=4)
    step = sharded([*techniques, "attention"], workload)
    shape = workload.shape
    embedding = shape.vocab_size * shape.hidden_size
    layers = shape.parameters - 2 * embedding - shape.hidden_size
    received_B = 4 * 4 * workload.micro_batch_size * workload.seq_len * workload.hidden_size
    for rank, ends in enumerate((embedding, embedding + shape.hidden_size)):
        found_B, stage = dry_run(step, rank=rank).by_kind_B, layers // 2 + ends
        gathered_B = 4 * stage if "fsdp2" in techniques else 0
        near_B = 100 if gathered_B else 16  # blocks of what is gathered are rounded up
        assert found_B["communication"] == pytest.approx(gathered_B + received_B, abs=near_B)
        assert found_B["gradients"] == 4 * stage
        share = 4 if "fsdp2" in techniques else 1
        assert found_B["optimizer_states"] == pytest.approx(8 * stage / share, abs=100)


def test_formulas_are_those_of_the_first_stage():
    """Megatron-LM's most loaded shard; with p micro-batches in flight activations are those of all layers."""
    sizes = {"num_hidden_layers": 8, "pp_size": 4, "gradient_accumulation_steps": 8}
    workload = replace(LLAMA, **sizes, optimizer="adamw")
    counts = memory.count_model(Subject(sharded("pipeline", workload), 80e9))

    def peaks_B(*techniques):
        step = sharded([*techniques, "mixed_precision", "attention"], workload)
        return {one.method: one.peak_B for one in estimates(Subject(step, 80e9), counts)}

    plain, staged, interleaved = peaks_B(), peaks_B("pipeline"), peaks_B(INTERLEAVED)
    embedding = workload.vocab_size * workload.hidden_size
    shard = (counts.parameters - 2 * embedding) / 4 + embedding
    assert staged["states_16"] == 16 * shard
    layers_B = plain["korthikanti"] - plain["states_16"]
    assert staged["korthikanti"] - 16 * shard == pytest.approx(layers_B)
    assert interleaved["korthikanti"] - 16 * shard == pytest.approx(layers_B * (1 + 3 / 8))
