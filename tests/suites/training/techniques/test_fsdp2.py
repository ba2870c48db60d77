"""FSDP2: correct on real ranks, and its dry run compared with real tensors."""

from dataclasses import replace
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from real_ranks import (
    CLIPPED,
    CPU,
    GPT,
    HOST,
    SMALL,
    TINY,
    baseline_losses,
    dry_and_measured,
    losses_on_ranks,
    sharded,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from harness.instruments.distributed.fake_process_group import fake_process_group, rank_mesh
from harness.instruments.memory.allocator import watch
from harness.instruments.memory.workspaces import chunk_cat_bytes
from harness.instruments.torch_internals import ChunksWhenAsked
from harness.records import Unavailable
from suites.memory.live_bytes import losses
from suites.training.dry_run.dry_run import dry_run
from suites.training.models.model import blocks_of
from suites.training.optimizers import LEARNING_RATES
from suites.training.techniques import build_step
from suites.training.trainer import build_model

TECHNIQUES = {
    "fsdp2": ["fsdp2"],
    "fsdp2_mixed_checkpointed": ["fsdp2", "mixed_precision", "attention", "activation_checkpointing"],
}

CLOSE = 1e-4  # relative: a fiftieth of what is asked for

SET_UPS = {
    "plain": replace(SMALL, gradient_accumulation_steps=1),
    "three_ranks_odd_sizes": replace(
        SMALL,
        dp_size=3,
        hidden_size=120,
        intermediate_size=251,
        vocab_size=501,
        gradient_accumulation_steps=1,
    ),
    "eight_ranks_fewer_rows_than_ranks": replace(
        SMALL, dp_size=8, vocab_size=5, seq_len=7, micro_batch_size=1
    ),
    "tied_biases_learned": replace(
        SMALL, dp_size=3, tie_word_embeddings=True, bias=True, norm="layer", position="learned"
    ),
    "accumulated_clipped_foreach": replace(
        SMALL, gradient_accumulation_steps=3, max_grad_norm=1.0, optimizer_impl="foreach"
    ),
    "few_tokens": replace(
        SMALL,
        dp_size=4,
        vocab_size=64,
        seq_len=8,
        micro_batch_size=1,
        num_hidden_layers=4,
        gradient_accumulation_steps=1,
    ),
    "momentum": replace(SMALL, optimizer="sgd_momentum", dp_size=5, gradient_accumulation_steps=1),
    "fused": replace(SMALL, optimizer_impl="fused", dp_size=5, gradient_accumulation_steps=1),
}
MIXED = ("eight_ranks_fewer_rows_than_ranks", "tied_biases_learned", "accumulated_clipped_foreach")
"""Set-ups that say how gradients are cut, padded and added, which narrow types do otherwise."""


@pytest.mark.parametrize(
    ("name", "set_up"),
    [*(("fsdp2", one) for one in SET_UPS), *(("fsdp2_mixed_checkpointed", one) for one in MIXED)],
)
def test_the_dry_run_equals_what_real_tensors_take(name, set_up):
    steps = 2 if set_up == "accumulated_clipped_foreach" else 1  # what is kept from step to step shows
    walked, measured_B = dry_and_measured(sharded(TECHNIQUES[name], SET_UPS[set_up]), steady_steps=steps)
    assert walked.peak_B == pytest.approx(measured_B, rel=CLOSE)


@pytest.mark.parametrize(("gradients", "ranks"), [("bf16", 3), ("fp32", 2)])
def test_so_it_does_in_mixed_precision(gradients, ranks):
    workload = replace(SMALL, dp_size=ranks, micro_batch_size=1, seq_len=24)
    step = sharded(["fsdp2", {"mixed_precision": {"gradients": gradients}}], workload)
    walked, measured_B = dry_and_measured(step)
    assert walked.peak_B == pytest.approx(measured_B, rel=CLOSE)


def keep_gathered(model, resources):
    mesh = rank_mesh("cpu")
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


TWICE = replace(SMALL, dp_size=3, gradient_accumulation_steps=2)
REDUCED_WITH_THE_LAST = [{"fsdp2": {"reduce_every_micro_batch": False}}, "mixed_precision"]


@pytest.mark.parametrize(
    "step",
    [replace(sharded("fsdp2", TWICE), wraps=(keep_gathered,)), sharded(REDUCED_WITH_THE_LAST, TWICE)],
    ids=["blocks stay gathered", "unsharded gradients pile up"],
)
def test_so_it_does_when_fsdp2_is_set_up_otherwise(step):
    walked, measured_B = dry_and_measured(step)
    assert walked.peak_B == pytest.approx(measured_B, rel=CLOSE)


def test_kinds_are_the_bytes_of_their_tensors():
    workload = replace(SMALL, dp_size=3, vocab_size=502)
    with torch.device("meta"):
        model = build_model(build_step(workload, (), 3))
    shards_B = sum(4 * -(-one.shape[0] // 3) * prod(one.shape[1:]) for one in model.parameters())
    buffers_B = sum(one.nbytes for one in model.buffers())
    steps_B = 4 * len(list(model.parameters()))  # AdamW counts its steps in a tensor for each parameter
    block_B = sum(4 * 3 * -(-one.shape[0] // 3) * prod(one.shape[1:]) for one in model.blocks[0].parameters())
    walked = dry_run(sharded("fsdp2", workload), HOST)
    assert walked.by_kind_B["parameters"] == shards_B + buffers_B
    assert walked.by_kind_B["optimizer_states"] == 2 * shards_B + steps_B
    assert walked.by_kind_B["communication"] >= block_B
    assert sum(walked.by_kind_B.values()) == walked.peak_B


@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    chunks=st.integers(2, 9),
    types=st.sampled_from([(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]),
    transposed=st.booleans(),
)
@settings(max_examples=25, deadline=None)
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


def test_repeated_layers_equal_a_full_trace():
    step = sharded(TECHNIQUES["fsdp2_mixed_checkpointed"], replace(SMALL, num_hidden_layers=6, dp_size=6))
    assert dry_run(step) == dry_run(step, full=True)


@pytest.mark.slow
def test_gpt3_over_88_ranks_is_traced():
    shape = {
        "num_hidden_layers": 96,
        "hidden_size": 12288,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "intermediate_size": 49152,
        "vocab_size": 50257,
    }
    workload = replace(
        GPT,
        **shape,
        max_position_embeddings=2048,
        seq_len=2048,
        micro_batch_size=1,
        dp_size=88,
        max_grad_norm=None,
    )
    walked = dry_run(sharded("fsdp2", workload))
    assert walked.by_kind_B["parameters"] == pytest.approx(4 * 174.6e9 / 88, rel=0.01)


WORKLOADS = {"tiny": TINY, "gpt": GPT, "clipped": CLIPPED}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Return what two real ranks saw of each workload."""
    runs = [("fsdp2", workload, 2) for workload in WORKLOADS.values()]
    return dict(zip(WORKLOADS, losses_on_ranks(runs, tmp_path_factory.mktemp("ranks")), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_real_ranks_see_the_losses_of_one_device(workload, on_ranks):
    expected = baseline_losses(WORKLOADS[workload])
    for seen in on_ranks[workload]:
        assert seen == pytest.approx(expected, rel=1e-5)


def test_these_losses_would_show_gradients_of_another_scale(monkeypatch):
    expected = baseline_losses(TINY)
    monkeypatch.setitem(LEARNING_RATES, "sgd_momentum", 0.5 * LEARNING_RATES["sgd_momentum"])
    off = [abs(ours / theirs - 1) for ours, theirs in zip(baseline_losses(TINY), expected, strict=True)]
    assert max(off) > 2e-5


def test_they_would_show_gradients_that_are_not_clipped():
    pairs = zip(baseline_losses(CLIPPED), baseline_losses(TINY), strict=True)
    assert max(abs(ours / theirs - 1) for ours, theirs in pairs) > 1e-4


def test_an_optimizer_that_torch_has_not_for_shards_is_refused():
    with pytest.raises(Unavailable, match="no fused SGD"):
        sharded("fsdp2", replace(TINY, optimizer_impl="fused"))


def test_8_bit_moments_on_the_host_are_refused():
    with pytest.raises(Unavailable, match=r"fsdp2: cpu_offload .*adamw_8bit has others$"):
        build_step(TINY, [{"optimizer": {"name": "adamw_8bit"}}, {"fsdp2": {"cpu_offload": True}}])


def test_sharding_without_ranks_is_refused():
    with pytest.raises(RuntimeError, match="no process group"):
        losses(sharded("fsdp2", TINY), 1, CPU)


@pytest.mark.parametrize("rows", [1, 6, 7, 12])
@pytest.mark.parametrize("chunks", [1, 3, 7, 40])
def test_chunks_made_when_asked_are_torchs(rows, chunks):
    tensor = torch.arange(rows * 2).view(rows, 2)
    expected = _chunk_with_empty(tensor, chunks, dim=0)
    lazy = ChunksWhenAsked(tensor, chunks, dim=0)
    assert all(torch.equal(lazy[index], one) for index, one in enumerate(expected))


def test_fake_ranks_leave_nothing_behind():
    with fake_process_group(7):
        assert dist.get_world_size() == 7
    assert not dist.is_initialized()
    with pytest.raises(KeyError), fake_process_group(7):
        raise KeyError
    assert not dist.is_initialized()


def test_fake_ranks_say_what_is_wrong():
    with pytest.raises(ValueError, match="ranks=0"), fake_process_group(0):
        pass
    with fake_process_group(2), pytest.raises(RuntimeError, match="exists already"), fake_process_group(2):
        pass
    assert not dist.is_initialized()
