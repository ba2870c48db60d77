"""A step's schedule stepped through time, and its timeline: spans against the schedule and sums by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.seconds import blocks_of_ranks, pipeline_s, step_s
from suites.training.step_time.setting import StepSetting
from suites.training.step_time.timeline import (
    MOST_SPANS,
    rank_passes,
    stepped,
    timeline,
)

DENSE = TransformerShape(
    num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
EXPERTS = replace(DENSE, num_experts=8, experts_per_token=2, moe_intermediate_size=2048,
                  moe_layers=(False, *(True,) * 31), num_nextn_predict_layers=1)  # fmt: skip
EIGHT_B = replace(DENSE, num_key_value_heads=32, vocab_size=131072)


def test_nanotron_ends_a_rank_with_the_block_that_passes_its_share():
    # matmuls of a layer: 243 M parameters, the output layer: 537 M or 2.2 layers; 8.55 layers for each of 4
    assert blocks_of_ranks(EIGHT_B, 4, "nanotron").layers == (9, 9, 8, 6)
    # of sixteen the second last has the output layer, and passes its logits on to the loss
    blocks = blocks_of_ranks(EIGHT_B, 16, "nanotron")
    assert (blocks.head, blocks.loss) == (14, 15)


def by_formula_s(stage_s, micro_batches, virtual_stages=1):
    return float(pipeline_s(np.array([stage_s]), np.array([micro_batches]), np.array([virtual_stages]))[0])


def stepped_s(stage_s, micro_batches, *more):
    """Return a step's seconds where a backward pass takes twice as long as its forward pass."""
    steps = stepped([one / 3 for one in stage_s], [2 * one / 3 for one in stage_s], micro_batches, *more)
    return max(one.end_s for one in steps)


@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 4), st.integers(1, 3), st.floats(0.1, 10))
def test_even_stages_take_as_long_as_the_schedule_and_narayanans_formula(pp, turns, virtual, stage_s):
    micro_batches = pp * turns
    narayanan_s = stage_s * (micro_batches + (pp - 1) / virtual)  # arXiv 2104.04473, section 2.2.2
    assert stepped_s([stage_s / virtual] * pp, micro_batches, virtual) == pytest.approx(narayanan_s)
    assert by_formula_s([stage_s] * pp, micro_batches, virtual) == pytest.approx(narayanan_s)


def test_a_schedule_runs_each_pass_once_and_never_before_what_it_needs():
    steps = stepped([1.0, 2.0, 1.5, 1.0], [2.0, 4.0, 3.0, 2.0], 8, 2)
    ends = {one.work: one.end_s for one in steps}
    assert len(ends) == len(steps) == 4 * 8 * 2 * 2
    for one in steps:
        before = one.work._replace(stage=one.work.stage + (1 if one.work.backward else -1))
        assert before not in ends or ends[before] <= one.start_s
    assert stepped_s([3.0] * 4, 8) == pytest.approx(stepped_s([3.0] * 4, 8, 1, "afab"))
    with pytest.raises(ValueError, match="6 micro-batches: interleaved stages take a multiple of pp=4"):
        stepped([1.0] * 4, [2.0] * 4, 6, 2)


def setting(shape: TransformerShape, program: str = "megatron") -> StepSetting:
    training = Training(seq_len=4096, program=program)
    return StepSetting(shape, training, GpuCluster(gpu_of("h100_80gb"), 8, 50e9), StepConstants.read())


def drawn(given: StepSetting, row: dict[str, int], view: str = "step"):
    layout = Layouts.of([row])
    step = step_s(given, layout)
    total_s = float(step.total[0])
    return timeline(given, layout, step, total_s, view), total_s


def by_kind(spans) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, start, end in spans:
        found[kind] += end - start
    return found


ROWS = [
    {"tp": 4, "pp": 4, "dp": 2, "micro_batches": 16, "zero": 1},
    {"tp": 16, "pp": 4, "micro_batches": 16, "virtual_stages": 2, "recompute": 2},
    {"dp": 8, "cp": 2, "zero": 3, "recompute": 1, "micro_batches": 3},
    {"dp": 8, "ep": 8, "pp": 2, "zero": 1, "recompute": 2, "micro_batches": 8},
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_second_of_every_rank_is_of_one_kind_as_all_its_passes_take(row):
    given, layout = setting(EXPERTS), Layouts.of([row])
    found, total_s = drawn(given, row)
    totals, _ = drawn(given, row, "totals")
    parts, step = rank_passes(given, layout), step_s(given, layout)
    assert found.drawn_over_stepped == pytest.approx(1, abs=0.05)
    assert len(found.ranks) == row.get("pp", 1)
    own = row["micro_batches"] * found.drawn_over_stepped
    for rank, spans in enumerate(found.ranks):
        edges = [(one.start_s, one.end_s) for one in spans]
        assert (edges[0][0], edges[-1][1]) == (0, pytest.approx(total_s))
        assert [end for _, end in edges[:-1]] == pytest.approx([start for start, _ in edges[1:]])
        seconds = by_kind(spans)
        assert dict(+by_kind(totals.ranks[rank])) == pytest.approx(dict(+seconds))
        for kind in ("forward", "recompute", "backward"):
            assert seconds[kind] == pytest.approx(own * getattr(parts, kind)[rank])
        exposed = own * (parts.forward_exposed + parts.backward_exposed)[rank] + step.reduction[0]
        assert seconds["exposed_communication"] == pytest.approx(exposed)
        assert (seconds["optimizer"], seconds["other"]) == pytest.approx((step.update[0], step.rest[0]))
        assert sum(seconds.values()) == pytest.approx(total_s)


def test_a_view_shows_the_steps_start_or_its_end_and_many_passes_are_summed_up():
    row = {"pp": 4, "micro_batches": 64}
    (start, total_s), (end, _) = (drawn(setting(DENSE), row, view) for view in ("start", "end"))
    assert all(spans[0].start_s == 0 and spans[-1].end_s < total_s / 2 for spans in start.ranks)
    assert all(spans[-1].end_s == pytest.approx(total_s) for spans in end.ranks)
    summed = [drawn(setting(DENSE), {"pp": 32, "micro_batches": count})[0] for count in (256, 4096)]
    assert summed[0].passes_per_span > 1
    assert sum(map(len, summed[0].ranks)) < 2 * MOST_SPANS
    assert summed[1].passes_per_span == 0  # totals alone
