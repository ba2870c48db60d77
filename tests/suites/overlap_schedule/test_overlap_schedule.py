"""The overlap_schedule suite: links and schedules against closed forms, the model by hand, and bad input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.run import load
from harness.records import Unavailable, WrongResult
from suites.overlap import overlap_schedule
from suites.overlap.overlap_schedule import (
    Links,
    OverlapModel,
    Subject,
    Transfer,
    carry,
    closed_form_s,
    simulate,
)
from suites.overlap.overlap_schedule_optimizations import same_order, swizzle_full_mesh, swizzle_ring
from suites.overlap.workload import OverlapScheduleWorkload

RUN = load(["suite=overlap_schedule"])[0]
RATE, PEAK = 100e9, 500e12
SCHEDULES = {
    "baseline": lambda subject: subject,
    "same_order": same_order,
    "swizzle_ring": swizzle_ring,
    "whole": lambda subject: swizzle_full_mesh(subject, 1),
    "parts": lambda subject: swizzle_full_mesh(subject, 4),
}
OPERATIONS = ["allgather_gemm", "gemm_reduce_scatter"]


def under(schedule, **changed):
    """Return the schedule's subject on a GEMM of 8 ranks; 1 MiB per shard, unless k or n say otherwise."""
    fields = {"m": 4096, "n": 1024, "k": 1024, "rate_B_per_s": RATE, "peak_FLOP_per_s": PEAK, **changed}
    subject = Subject(OverlapScheduleWorkload(**{"message_s": 0.0, "source": "here", **fields}))
    return SCHEDULES[schedule](subject)


shapes = st.fixed_dictionaries(
    {
        "operation": st.sampled_from(OPERATIONS),
        "topology": st.sampled_from(["switch", "full_mesh"]),
        "ranks": st.sampled_from([2, 4, 8]),
        "n": st.sampled_from([256, 1024, 8192]),
        "k": st.sampled_from([256, 1024, 8192]),
        "message_s": st.sampled_from([0.0, 2e-6, 50e-6]),
        "compute_share": st.floats(0.01, 1),
    }
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(schedule=st.sampled_from(sorted(SCHEDULES)), shape=shapes)
def test_every_schedule_agrees_with_its_closed_form_and_loses_no_byte(schedule, shape):
    subject = under(schedule, **shape)
    overlap_schedule.check(subject)
    result = simulate(subject)
    alone = simulate(under("baseline", **shape)).time_s
    mixed = schedule in ("whole", "parts") and shape["operation"] == "gemm_reduce_scatter"
    has_none = shape["topology"] == "switch" and (schedule == "same_order" or mixed)
    assert (closed_form_s(subject) is None) == has_none
    if schedule == "whole":
        assert result.time_s <= alone * (1 + 1e-9)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("schedule", "topology", "shards"),
    [
        ("swizzle_ring", "full_mesh", 7),
        ("same_order", "full_mesh", 7),
        ("parts", "full_mesh", 1),
        ("parts", "switch", 7),
        ("baseline", "switch", 7),
    ],
)
def test_how_many_shards_a_link_carries_one_after_the_other_and_what_a_long_gemm_hides(
    operation, schedule, topology, shards
):
    """All but the message overhead: the own shard is computed first, or last."""
    fields = {"topology": topology, "operation": operation}
    communication_s = shards * 2**20 / RATE
    short = simulate(under(schedule, peak_FLOP_per_s=1e30, **fields))
    assert [short.time_s, short.communication_s] == pytest.approx([communication_s] * 2)
    long = under(schedule, peak_FLOP_per_s=1e12, **fields)
    exposed_s = communication_s if schedule == "baseline" else 0
    assert simulate(long).time_s == pytest.approx(long.workload.compute_time_s() + exposed_s)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_same_order_on_a_switch_takes_half_as_many_times_as_long_as_ranks(ranks):
    """Peer 0 serves all others, then peer 1 all but rank 0, which is ahead, and so on."""
    subject = under("same_order", ranks=ranks, message_s=1e-9)
    expected_s = ranks * (ranks - 1) / 2 * subject.workload.shard_B / RATE + (ranks - 1) * 1e-9
    assert simulate(subject).communication_s == pytest.approx(expected_s)


def test_two_messages_share_a_port_and_the_rest_is_faster():
    links = Links("switch", 3, 1.0)
    streams = [[Transfer(0, 1, 2.0)], [Transfer(2, 1, 1.0)], [Transfer(1, 0, 2.0)]]
    carried = carry(streams, links, 0.0)
    assert carried.end_s == [pytest.approx([3.0]), pytest.approx([2.0]), pytest.approx([2.0])]
    assert carried.bytes_L == pytest.approx([2, 2, 1, 2, 3, 0])
    late = [Transfer(0, 1, 1.0), Transfer(0, 1, 1.0, ready_s=5.0)]  # for its turn and its data
    assert carry([late], Links("full_mesh", 2, 1.0), 0.5).end_s == [pytest.approx([1.5, 6.5])]


def test_the_model_and_flop_and_bytes_of_published_shapes_by_hand():
    """8,192 x 28,672 x 8,192 on 8 GPUs: 2 m n k / 8 FLOP, and 7 shards of 1,024 x 8,192 x 2 B at 200 GB/s."""
    model = OverlapModel(compute_s=8.0, communication_s=4.0, chunks=8)
    assert (model.sequential_s, model.longer_s, model.overlapped_s) == (12.0, 8.0, 8.5)
    assert model.speedup == pytest.approx(12 / 8.5)
    workload = OverlapScheduleWorkload(**RUN.workloads["h800_ag_28672_8192"])
    assert workload.shard_B == 2**24
    assert workload.compute_time_s(1.0) == pytest.approx(2 * 8192 * 28672 * 8192 / 8 / 989.4e12)
    assert workload.communication_time_s == pytest.approx(7 * 2**24 / 200e9)
    mesh = OverlapScheduleWorkload(**RUN.workloads["mi308x_rs_8192_28672"])
    assert mesh.communication_time_s == pytest.approx(2**24 / 50e9)
    asynchronous = [name for name in RUN.workloads if "async" in name]
    assert asynchronous
    for name in asynchronous:
        hidden, parameters = (4096, 218_103_808) if "8b" in name else (8192, 855_638_016)
        flop = (2 * 8192 * parameters + 2 * 8192**2 * hidden) / 8
        flop_times, sent_times = (4, 3) if "step" in name else (1, 1)
        workload = OverlapScheduleWorkload(**RUN.workloads[name])
        assert workload.flop == pytest.approx(flop_times * flop, rel=1e-4)
        assert workload.communication_B == sent_times * 4 * 7 / 8 * 8192 * hidden * 2


def readings(name):
    subject = overlap_schedule.build(RUN.workloads[name], 1)
    return {(one.metric, one.method): one.value for one in overlap_schedule.sample(subject)}


def test_published_times_and_the_errors_of_the_model():
    flux = readings("flux_l20_ag")
    model_s = 5.316e-3 + 7 * 512 * 12288 * 2 / 31.5e9 / 8
    assert flux["overlapped", "model"] == pytest.approx(model_s)
    assert flux["relative_error", "overlapped"] == pytest.approx(model_s / 5.903e-3 - 1)
    assert flux["speedup", "published"] == pytest.approx(2.87, abs=5e-3)
    trace = readings("deepseek_v3_trace")
    share = trace["overlapped", "no first chunk"] / trace["overlapped", "published"]
    assert share == pytest.approx(0.96, abs=5e-3)
    assert ("speedup", "published") not in trace


def test_a_wrong_time_and_a_lost_byte_are_caught(monkeypatch):
    subject = under("swizzle_ring")
    right = simulate(subject)
    late = right._replace(finish_s=[one * 1.01 for one in right.finish_s])
    lost = right._replace(carried=right.carried._replace(bytes_L=right.carried.bytes_L * 0.99))
    early = right._replace(finish_s=[one / 9 for one in right.finish_s])
    for result, said in ((late, "closed form"), (lost, "its shards have"), (early, "no schedule takes")):
        monkeypatch.setattr(overlap_schedule, "simulate", lambda _, result=result: result)
        with pytest.raises(WrongResult, match=said):
            overlap_schedule.check(subject)


@pytest.mark.parametrize(
    ("workload", "changed", "said"),
    [
        ("h800_ag_28672_8192", {"n": 12}, "n=12: expected a multiple of the ranks"),
        ("h800_ag_28672_8192", {"peak_FLOP_per_s": None}, "compute_s: missing"),
        ("flux_l20_ag", {"communication_B": None}, "communication_s: missing"),
    ],
)
def test_a_workload_without_an_input_is_unavailable(workload, changed, said):
    with pytest.raises(Unavailable, match=said):
        overlap_schedule.build({**RUN.workloads[workload], **changed}, 1)
