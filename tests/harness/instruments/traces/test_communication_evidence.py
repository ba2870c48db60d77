"""Communication without a known name: by arguments, annotations, operators, and patterns of the user's."""

import numpy as np
import pytest
from kineto_traces import Writer

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.communication import HOW
from harness.instruments.traces.kineto import read_trace
from harness.instruments.traces.segments import State


def recognized_by(path, *patterns):
    """Return by what each event of the device was recognized, by name."""
    activity = Activity(read_trace(path), tuple(patterns))
    how = activity.on_device.recognized_by
    trace = activity.trace
    return {trace.name(int(at)): HOW[how[at]] for at in np.flatnonzero(how)}


def step(**given):
    one = Writer(**given)
    one.step(0, 0, 1_000)
    one.kernel("gemm", 100, 400, called=10)
    return one


def test_arguments_of_a_collective_name_a_kernel(tmp_path):
    one = step()
    one.kernel("xyz", 200, 300, called=20, stream=9, **{"Collective name": "all_to_allv"})
    one.kernel("zyx", 300, 400, called=30, stream=9, **{"In msg nelems": 7})
    one.kernel("group", 400, 500, called=40, stream=9, **{"Process Group Name": "tp"})
    path = one.write(tmp_path)
    assert recognized_by(path) == dict.fromkeys(["xyz", "zyx", "group"], "arguments")
    activity = Activity(read_trace(path))
    named = [activity.collective(int(at)) for at in np.flatnonzero(activity.communication)]
    assert named == ["all_to_all", "collective", "collective of tp"]


def test_an_annotation_of_the_device_names_what_it_encloses_on_its_stream(tmp_path):
    one = step()
    one._add("gpu_user_annotation", "nccl:all_reduce", 0, 9, 200, 300, {})
    one._add("gpu_user_annotation", "forward", 0, 9, 150, 450, {})
    one.kernel("inside", 210, 290, called=20, stream=9)
    one.kernel("after", 310, 390, called=30, stream=9)
    one.kernel("other stream", 210, 290, called=40, stream=11)
    assert recognized_by(one.write(tmp_path)) == {"inside": "annotation"}


@pytest.mark.parametrize(
    "operator",
    [
        "c10d::allreduce_",
        "_c10d_functional::all_reduce",
        "record_param_comms",
        "symm_mem::two_shot_all_reduce_",
        "nccl:all_reduce",
        "vllm::all_reduce",
    ],
)
def test_the_innermost_operator_names_a_kernel(tmp_path, operator):
    one = step()
    one.host_event(operator, 20, 60)
    one.kernel("custom", 200, 300, called=30, stream=9)
    one.host_event("aten::fill_", 40, 50)
    one.kernel("fill", 300, 310, called=45, stream=9)
    one.kernel("after", 310, 320, called=70, stream=9)
    assert recognized_by(one.write(tmp_path)) == {"custom": "operator"}


def test_products_within_a_symmetric_memory_operator_compute_and_its_copies_communicate(tmp_path):
    one = step()
    one.host_event("symm_mem::fused_all_gather_matmul", 20, 90)
    one.host_event("aten::mm", 30, 40)
    one.kernel("product", 200, 300, called=35)
    one.host_event("aten::copy_", 50, 60)
    one.kernel("Memcpy DtoD (Device -> Device)", 210, 280, called=55, stream=9, category="gpu_memcpy")
    one.host_event("aten::copy_", 70, 80)
    one.kernel("copy_kernel", 280, 299, called=75, stream=9)
    one.kernel("Memcpy DtoD (Device -> Device) after", 500, 510, called=95, category="gpu_memcpy")
    found = recognized_by(one.write(tmp_path))
    assert found == dict.fromkeys(["Memcpy DtoD (Device -> Device)", "copy_kernel"], "operator")


def test_copies_to_the_host_within_a_collective_stay_copies(tmp_path):
    one = step()
    one.host_event("c10d::allreduce_", 20, 60)
    one.kernel("Memcpy DtoH (Device -> Pinned)", 200, 300, called=30, category="gpu_memcpy")
    assert recognized_by(one.write(tmp_path)) == {}


def test_a_kernel_without_a_launch_has_its_operator_by_number(tmp_path):
    one = step()
    one.host_event("c10d::allreduce_", 20, 60, **{"External id": 77})
    one.kernel("linked", 200, 300, stream=9, **{"External id": 77})
    one.kernel("another", 300, 400, stream=9, **{"External id": 78})
    one.kernel("old", 400, 500, stream=9, **{"External id": 77, "correlation": 77})
    assert recognized_by(one.write(tmp_path)) == {"linked": "operator"}


def test_patterns_of_the_user_add_kernels_and_one_without_effect_is_missing(tmp_path):
    one = step()
    one.kernel("my_push_kernel", 300, 600, called=20, stream=9)
    path = one.write(tmp_path)
    assert recognized_by(path) == {}
    assert recognized_by(path, "my_push") == {"my_push_kernel": "pattern"}
    found = breakdown((read_trace(path),), communication=["my_push", "absent"])
    assert found.share_of(State.COMPUTING) == pytest.approx(0.3)
    assert found.share_of(State.COMMUNICATION) == pytest.approx(0.2)
    assert [one for one in found.missing if "communication=" in one] == [
        "kernels for communication=absent: no kernel has such a name"
    ]


def test_a_kernel_that_does_both_computes_and_is_hidden_communication(tmp_path):
    one = step()
    one.kernel("fused_gemm_reduce_scatter", 500, 700, called=20)
    path = one.write(tmp_path)
    found = breakdown((read_trace(path),))
    assert found.share_of(State.COMPUTING) == pytest.approx(0.5)
    assert found.share_of(State.COMMUNICATION) == 0
    assert found.overlapped_s == pytest.approx(200e-9)
    assert found.fused_s == pytest.approx(200e-9)
    as_communication = breakdown((read_trace(path),), communication=["fused_gemm"])
    assert as_communication.share_of(State.COMMUNICATION) == pytest.approx(0.2)
    assert as_communication.fused_s == 0


def test_two_shot_all_reduce_half_hidden_behind_a_product(tmp_path):
    one = Writer()
    one.step(0, 0, 10_000_000)
    one.kernel("gemm", 0, 6_000_000, called=0)
    one.kernel("two_shot_all_reduce_kernel", 4_000_000, 8_000_000, called=1, stream=9)
    found = breakdown((read_trace(one.write(tmp_path)),))
    assert found.share_of(State.COMPUTING) == pytest.approx(0.6)
    assert found.share_of(State.COMMUNICATION) == pytest.approx(0.2)
    assert found.overlapped_s + found.exposed_s == pytest.approx(4e-3)


def test_a_trace_in_which_nothing_computes_is_broken_down(tmp_path):
    one = Writer()
    one.step(0, 0, 1_000)
    one.kernel("ncclDevKernel_AllReduce", 200, 700, called=100)
    found = breakdown((read_trace(one.write(tmp_path)),))
    assert found.share_of(State.COMMUNICATION) == pytest.approx(0.5)
    assert found.factors.observed_s == pytest.approx(found.step_s)
    assert "factors: nothing computes" in found.missing
