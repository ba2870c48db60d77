"""FSDP2 and ZeRO: what they gather and shard, bytes of copies, and fake ranks that leave nothing behind."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_ranks import CPU, HOST, SMALL, TINY, sharded

from harness.instruments.memory.allocator import watch
from harness.instruments.memory.workspaces import chunk_cat_bytes
from harness.records import Reading
from suites.memory.subject import Subject
from suites.memory.suite import count_model
from suites.memory.thresholds import thresholds
from suites.training.declared import ZeROSettings
from suites.training.dry_run.dry_run import among_ranks, dry_run
from suites.training.techniques import build_step
from suites.training.techniques.zero import config
from suites.training.trainer import Trainer, build_model

ON_FOUR = replace(SMALL, dp_size=4, gradient_accumulation_steps=1)


def test_kinds_are_the_bytes_of_their_tensors():
    workload = replace(SMALL, dp_size=3, vocab_size=502)
    with torch.device("meta"):
        model = build_model(build_step(workload, (), 3))
    shards_B = sum(4 * -(-one.shape[0] // 3) * prod(one.shape[1:]) for one in model.parameters())
    buffers_B = sum(one.nbytes for one in model.buffers())
    steps_B = 4 * len(list(model.parameters()))  # AdamW counts its steps in a tensor for each parameter
    block_B = sum(4 * 3 * -(-one.shape[0] // 3) * prod(one.shape[1:]) for one in model.blocks[0].parameters())
    found = dry_run(sharded("fsdp2", workload), HOST)
    assert found.by_kind_B["parameters"] == shards_B + buffers_B
    assert found.by_kind_B["optimizer_states"] == 2 * shards_B + steps_B
    assert found.by_kind_B["communication"] >= block_B
    assert sum(found.by_kind_B.values()) == found.peak_B


def test_what_stays_gathered_after_the_forward_pass():
    model = Trainer(build_step(ON_FOUR)).plain
    block_B = sum(one.nbytes for one in model.blocks[0].parameters())
    ends_B = sum(one.nbytes for one in model.parameters()) - 3 * block_B  # embedding, norm, output layer

    def gathered_B(**settings):
        step = build_step(ON_FOUR, [{"fsdp2": settings}])
        with among_ranks(step):
            trainer = Trainer(step)
            trainer.model(*next(trainer._random_batches()))
            held = [one for one in trainer.model.parameters() if not hasattr(one, "full_tensor")]
        return sum(one.untyped_storage().nbytes() for one in held)

    assert gathered_B() == ends_B
    assert gathered_B(reshard_after_forward=True) == 0
    assert gathered_B(keep_last_block=True) == block_B + ends_B
    assert gathered_B(reshard_after_forward=False) == 3 * block_B + ends_B
    assert gathered_B(head="apart") == ends_B - 4 * ON_FOUR.vocab_size * ON_FOUR.hidden_size


@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    chunks=st.integers(2, 9),
    types=st.sampled_from([(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]),
    transposed=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_what_chunk_cat_holds_is_what_the_allocator_saw(rows, chunks, types, transposed):
    narrow, wide = types
    if transposed:
        tensors = [torch.ones(5, r, dtype=narrow).t() for r in rows]
    else:
        tensors = [torch.ones(r, 5, dtype=narrow) for r in rows]
    out = torch.empty(chunks, sum(-(-r // chunks) * 5 for r in rows), dtype=wide)
    expected_B = chunk_cat_bytes(tensors, 0, chunks, out)
    with watch(CPU) as allocator:
        allocator.mark("copy")
        torch.ops.fsdp.chunk_cat(tensors, dim=0, num_chunks=chunks, out=out)
    assert allocator.peaks[0].live_B == expected_B


@pytest.mark.parametrize(("stage", "share"), [(1, 1), (3, 1 / 8)])
def test_each_rank_holds_its_share_of_what_the_stage_spreads(stage, share):
    workload = replace(SMALL, num_hidden_layers=1, dp_size=8, gradient_accumulation_steps=1)
    found = dry_run(sharded([{"zero": {"stage": stage}}], workload))
    all_B = 4 * workload.shape.parameters
    tables_B = 2 * 4 * workload.max_position_embeddings * (workload.hidden_size // 4)
    assert found.by_kind_B["parameters"] - tables_B == pytest.approx(share * all_B, rel=2e-3)
    states = 3  # the two of Adam, and a second copy of the shard, in fp32 too
    assert found.by_kind_B["optimizer_states"] == pytest.approx(states * all_B / 8, rel=2e-3)


def test_ranks_of_a_large_model_are_searched_by_formula():
    """A search tries many numbers of ranks, and each try runs every layer."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 50_000, "num_hidden_layers": 1}
    large = replace(TINY, **sizes, dp_size=8, optimizer="adamw")
    step = sharded(["zero", "mixed_precision", "attention"], large)
    subject = Subject(step, 80e9)

    def refuse(*_, **__):
        raise AssertionError("a dry run in the search")

    found = list(thresholds(subject, count_model(subject), refuse))
    assert [one.method for one in found if isinstance(one, Reading)] == ["korthikanti"] * 2


@pytest.mark.parametrize(
    ("given", "elements"), [(None, 1000), (500_000_000, 1000), (40, 40), (2 * 10**9, 2 * 10**9)]
)
def test_a_bucket_above_deepspeeds_default_is_allocated_whole(given, elements):
    """deepspeed 0.19.8, runtime/zero/stage3.py: torch.empty(reduce_bucket_size), whatever the model."""
    sizes = SimpleNamespace(block=100, largest=50, all=1000, ranks=2)
    workload = SimpleNamespace(micro_batch_size=1, max_grad_norm=None, gradient_accumulation_steps=1)
    made = config(ZeROSettings(reduce_bucket=given), "fp32", workload, sizes)["zero_optimization"]
    assert (made["reduce_bucket_size"], made["allgather_bucket_size"]) == (elements, 1000)
