"""What each pipeline rank has, and a step's seconds by formula against the schedule stepped through time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.transformer import TransformerShape
from suites.training.step_time.seconds import blocks_of_ranks, pipeline_s
from suites.training.step_time.timeline import passes_of_rank, stepped

EIGHT_B = TransformerShape(
    num_hidden_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=131072,
)


def seconds(stage_s, micro_batches, virtual_stages=1):
    return float(pipeline_s(np.array([stage_s]), np.array([micro_batches]), np.array([virtual_stages]))[0])


@pytest.mark.parametrize("program", ["nanotron", "megatron"])
@pytest.mark.parametrize("pp", [1, 2, 4, 8, 16, 32])
def test_all_layers_lie_on_some_rank(program, pp):
    blocks = blocks_of_ranks(EIGHT_B, pp, program)
    assert sum(blocks.layers) == 32
    assert len(blocks.layers) == pp
    assert blocks.head <= blocks.loss < pp


def test_nanotron_ends_a_rank_with_the_block_that_passes_its_share():
    # matmuls of a layer: 243 M parameters, the output layer: 537 M or 2.2 layers; 8.55 layers for each of 4
    assert blocks_of_ranks(EIGHT_B, 4, "nanotron").layers == (9, 9, 8, 6)
    # of sixteen the second last has the output layer, and passes its logits on to the loss
    blocks = blocks_of_ranks(EIGHT_B, 16, "nanotron")
    assert (blocks.head, blocks.loss) == (14, 15)


@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 4), st.integers(1, 3), st.floats(0.1, 10))
def test_even_stages_take_as_long_as_the_schedule_and_narayanans_formula(pp, turns, virtual, stage_s):
    micro_batches = pp * turns
    steps = stepped([stage_s / 3 / virtual] * pp, [2 * stage_s / 3 / virtual] * pp, micro_batches, virtual)
    by_formula = stage_s * (micro_batches + (pp - 1) / virtual)  # arXiv 2104.04473, section 2.2.2
    assert max(one.end_s for one in steps) == pytest.approx(by_formula)
    assert seconds([stage_s] * pp, micro_batches, virtual) == pytest.approx(by_formula)


@given(st.lists(st.floats(0.7, 1.4), min_size=2, max_size=8), st.integers(2, 5))
def test_uneven_stages_take_about_as_long_as_the_schedule(stage_s, turns):
    micro_batches = len(stage_s) * turns
    steps = stepped([one / 3 for one in stage_s], [2 * one / 3 for one in stage_s], micro_batches)
    taken = max(one.end_s for one in steps)
    assert seconds(stage_s, micro_batches) == pytest.approx(taken, rel=0.12)


def test_a_schedule_runs_each_pass_once_and_never_before_what_it_needs():
    steps = stepped([1.0, 2.0, 1.5, 1.0], [2.0, 4.0, 3.0, 2.0], 8, 2)
    ends = {one.work: one.end_s for one in steps}
    assert len(ends) == len(steps) == 4 * 8 * 2 * 2
    for one in steps:
        before = one.work._replace(stage=one.work.stage + (1 if one.work.backward else -1))
        assert before not in ends or ends[before] <= one.start_s


def test_all_forward_passes_first_take_as_long_and_hold_more():
    one = stepped([1.0] * 4, [2.0] * 4, 8)
    other = stepped([1.0] * 4, [2.0] * 4, 8, order="afab")
    assert max(step.end_s for step in one) == pytest.approx(max(step.end_s for step in other))
    assert [work.backward for work in passes_of_rank(0, 4, 8, 1, "afab")] == [False] * 8 + [True] * 8
    assert [work.backward for work in passes_of_rank(0, 4, 8, 1, "1f1b")].index(True) == 4


def test_interleaved_stages_need_a_multiple_of_the_ranks():
    with pytest.raises(ValueError, match="6 micro-batches: interleaved stages take a multiple of pp=4"):
        stepped([1.0] * 4, [2.0] * 4, 6, 2)
