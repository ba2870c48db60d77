"""A step as a timeline: passes against the seconds of ranks, spans against the schedule and sums by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.layer import head_s
from suites.training.step_time.seconds import mean_layer, rank_s, step_s
from suites.training.step_time.setting import StepSetting
from suites.training.step_time.timeline import MOST_SPANS, mean_layer_passes, rank_passes, timeline

DENSE = TransformerShape(
    num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
EXPERTS = replace(
    DENSE,
    num_experts=8,
    experts_per_token=2,
    moe_intermediate_size=2048,
    moe_layers=(False, *(True,) * 31),
    num_nextn_predict_layers=1,
)
NO_HEAD = replace(DENSE, vocab_size=8)
"""A model whose pipeline stages are all but equally long."""


def setting(shape: TransformerShape, program: str = "megatron") -> StepSetting:
    gpu = gpu_of("h100_80gb")
    assert gpu is not None
    training = Training(seq_len=4096, program=program)  # type: ignore[arg-type]
    return StepSetting(shape, training, GpuCluster(gpu, 8, 50e9), StepConstants.read())


def drawn(given: StepSetting, row: dict[str, int], view: str = "step"):
    layout = Layouts.of([row])
    step = step_s(given, layout)
    total_s = float(step.total[0])
    return timeline(given, layout, step, total_s, view), total_s  # type: ignore[arg-type]


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
@pytest.mark.parametrize("program", ["megatron", "torchtitan", "nanotron"])
@pytest.mark.parametrize("shape", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_passes_add_up_to_the_seconds_of_each_rank(shape, program, row):
    given, layout = setting(shape, program), Layouts.of([row])
    parts = rank_passes(given, layout)
    whole = rank_s(given, layout, mean_layer(given, layout).total, head_s(given, layout))[0]
    assert parts.forward_s + parts.backward_s == pytest.approx(whole)
    assert all((part >= 0).all() for part in parts)


def test_full_recompute_repeats_the_forward_pass_of_each_layer_and_nothing_else():
    given = setting(DENSE)
    again, plain = (mean_layer_passes(given, Layouts.of([{"tp": 8, "recompute": n}])) for n in (2, 0))
    assert again.recompute == pytest.approx(plain.forward)
    assert again.backward == pytest.approx(plain.backward)
    assert plain.recompute == 0
    # its collectives, too: 4 more than 6
    assert again.backward_exposed == pytest.approx(plain.backward_exposed * 10 / 6)


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("view", ["step", "totals"])
def test_every_rank_is_accounted_for_from_the_start_to_the_end(row, view):
    given = setting(EXPERTS)
    found, total_s = drawn(given, row, view)
    assert len(found.ranks) == row.get("pp", 1)
    for spans in found.ranks:
        edges = [(one.start_s, one.end_s) for one in spans]
        assert edges[0][0] == 0
        assert edges[-1][1] == pytest.approx(total_s)
        assert [end for _, end in edges[:-1]] == pytest.approx([start for start, _ in edges[1:]])
        assert all(end >= start for start, end in edges)


def test_the_seconds_of_a_kind_are_those_of_all_its_passes():
    given, row = setting(DENSE), ROWS[1]
    found, total_s = drawn(given, row)
    layout = Layouts.of([row])
    parts, step = rank_passes(given, layout), step_s(given, layout)
    assert found.drawn_over_stepped == pytest.approx(1, abs=0.03)
    for rank, spans in enumerate(found.ranks):
        seconds = by_kind(spans)
        own = 16 * found.drawn_over_stepped
        assert seconds["forward"] == pytest.approx(own * parts.forward[rank])
        assert seconds["recompute"] == pytest.approx(own * parts.recompute[rank])
        assert seconds["backward"] == pytest.approx(own * parts.backward[rank])
        exposed = own * (parts.forward_exposed + parts.backward_exposed)[rank] + step.reduction[0]
        assert seconds["exposed_communication"] == pytest.approx(exposed)
        assert seconds["optimizer"] == pytest.approx(step.update[0])
        assert seconds["other"] == pytest.approx(step.rest[0])
        assert sum(seconds.values()) == pytest.approx(total_s)


@pytest.mark.parametrize(("pp", "micro_batches", "virtual"), [(4, 8, 1), (4, 8, 2), (8, 64, 1)])
def test_even_stages_are_idle_as_narayanans_formula_has_it(pp, micro_batches, virtual):
    row = {"pp": pp, "micro_batches": micro_batches, "virtual_stages": virtual}
    found, _ = drawn(setting(NO_HEAD), row)
    bubble = (pp - 1) / virtual  # arXiv 2104.04473, section 2.2.2
    for spans in found.ranks:
        seconds = by_kind(spans)
        pipelined = sum(seconds[kind] for kind in ("forward", "backward", "exposed_communication", "idle"))
        assert seconds["idle"] / pipelined == pytest.approx(bubble / (bubble + micro_batches), rel=0.02)


def test_the_first_rank_waits_for_the_last_ones_first_backward_pass():
    found, _ = drawn(setting(NO_HEAD), {"pp": 2, "micro_batches": 2})
    kinds = [[one.kind for one in spans if one.kind != "exposed_communication"] for spans in found.ranks]
    assert kinds[0][:5] == ["forward", "forward", "idle", "backward", "idle"]
    assert kinds[1][:5] == ["idle", "forward", "backward", "forward", "backward"]


@pytest.mark.parametrize("row", [{"pp": 8, "micro_batches": 1024}, {"pp": 16, "micro_batches": 256}], ids=str)
def test_many_passes_are_summed_up_and_lose_no_second(row):
    given = setting(DENSE)
    found, _ = drawn(given, row)
    totals, _ = drawn(given, row, "totals")
    assert found.passes_per_span > 1
    assert sum(map(len, found.ranks)) < 2 * MOST_SPANS
    for spans, whole in zip(found.ranks, totals.ranks, strict=True):
        assert by_kind(spans)["backward"] == pytest.approx(by_kind(whole)["backward"], rel=0.03)


def test_too_many_passes_are_answered_with_totals():
    found, _ = drawn(setting(DENSE), {"pp": 32, "micro_batches": 4096})
    assert found.passes_per_span == 0


def test_a_view_shows_the_steps_start_or_its_end():
    row = {"pp": 4, "micro_batches": 64}
    whole, total_s = drawn(setting(DENSE), row)
    start, end = (drawn(setting(DENSE), row, view)[0] for view in ("start", "end"))
    assert all(spans[0].start_s == 0 and spans[-1].end_s < total_s / 2 for spans in start.ranks)
    assert all(spans[0].start_s > total_s / 2 for spans in end.ranks)
    assert all(spans[-1].end_s == pytest.approx(total_s) for spans in end.ranks)
    assert end.ranks[0][-1][1:] == pytest.approx(whole.ranks[0][-1][1:])
    assert np.isclose(start.ranks[1][0].end_s, whole.ranks[1][0].end_s)
