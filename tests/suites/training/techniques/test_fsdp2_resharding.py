"""FSDP2's resharding and grouping: what stays gathered, and bytes as measured on one of four ranks."""

from dataclasses import replace

import pytest
from random_steps import assert_as_measured
from small_steps import HOST, LLAMA

from harness.records import Unavailable
from suites.training.dry_run.dry_run import among_ranks, dry_run
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

LAYERS = 3
RANKS = replace(LLAMA, num_hidden_layers=LAYERS, dp_size=4)
FURTHER = ["mixed_precision", "activation_checkpointing"]

SETTINGS = [
    {"reshard_after_forward": True},
    {"reshard_after_forward": False},
    {"reshard_after_forward": 2},
    {"keep_last_block": True},
    {"head": "apart"},
    {"head": "apart", "reshard_after_forward": False},
    {"head": "apart", "reshard_after_forward": True},
]


@pytest.mark.parametrize(
    ("settings", "further"),
    [*((one, FURTHER) for one in SETTINGS), *((SETTINGS[at], []) for at in (1, 3, 4))],
    ids=str,
)
def test_a_dry_run_is_as_measured(settings, further):
    step = build_step(RANKS, [{"fsdp2": settings}, *further])
    with among_ranks(step):
        assert_as_measured(step)


@pytest.mark.parametrize("settings", [SETTINGS[3], SETTINGS[6]], ids=str)
def test_repeated_layers_equal_a_full_trace(settings):
    """With six, the fewest of which some are not traced."""
    step = build_step(replace(RANKS, num_hidden_layers=6), [{"fsdp2": settings}])
    assert dry_run(step, HOST) == dry_run(step, HOST, full=True)


def gathered_B(settings):
    """Return the bytes of gathered parameters when the forward pass has ended, beyond the rank's shards."""
    step = build_step(RANKS, [{"fsdp2": settings}])
    with among_ranks(step):
        trainer = Trainer(step)
        trainer.model(*next(trainer._random_batches()))
        held = [one for one in trainer.model.parameters() if not hasattr(one, "full_tensor")]
    return sum(one.untyped_storage().nbytes() for one in held)


def test_what_stays_gathered_after_the_forward_pass():
    block_B, ends_B = block_and_ends_B()
    assert gathered_B({}) == ends_B  # embedding, norm, output layer
    assert gathered_B({"reshard_after_forward": True}) == 0
    assert gathered_B({"keep_last_block": True}) == block_B + ends_B
    assert gathered_B({"reshard_after_forward": False}) == LAYERS * block_B + ends_B
    embedding_B = 4 * LLAMA.vocab_size * LLAMA.hidden_size
    assert gathered_B({"head": "apart"}) == ends_B - embedding_B


def block_and_ends_B():
    model = Trainer(build_step(RANKS)).plain
    block_B = sum(one.nbytes for one in model.blocks[0].parameters())
    return block_B, sum(one.nbytes for one in model.parameters()) - LAYERS * block_B


def test_a_tied_output_layer_is_not_wrapped_apart():
    with pytest.raises(Unavailable, match="shares the embedding's weight"):
        build_step(replace(RANKS, tie_word_embeddings=True), [{"fsdp2": {"head": "apart"}}])
