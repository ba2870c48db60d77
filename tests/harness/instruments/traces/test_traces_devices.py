"""Devices other than CUDA are read the same; what is not read is named."""

import pytest
from counted_trace import counted
from kineto_traces import Writer

from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_trace
from harness.instruments.traces.segments import State

DEVICES = {
    "cuda": ("cuda_runtime", "kernel", "gpu_memcpy", "ncclDevKernel_AllReduce"),
    "hip": ("cuda_runtime", "kernel", "gpu_memcpy", "rcclGenericKernel_7"),
    "hip named so": ("hip_runtime", "kernel", "gpu_memcpy", "ncclDevKernel_Generic"),
    "xpu": ("xpu_runtime", "kernel", "gpu_memcpy", "oneccl_allreduce_small"),
    "xpu driver": ("xpu_driver", "kernel", "gpu_memcpy", "xccl_allreduce"),
    "privateuse1": ("privateuse1_runtime", "kernel", "gpu_memcpy", "hcclAllReduce"),
    "privateuse1 named so": (
        *("privateuse1_driver", "privateuse1_kernel", "privateuse1_memcpy"),
        "cnclAllReduce",
    ),
    "mtia": ("mtia_runtime", "mtia_ccp_events", "mtia_ccp_events", "hccl_all_reduce"),
    "common names": ("runtime", "kernel", "memcpy", "ncclDevKernel_AllReduce"),
}


def trace_of(device, tmp_path):
    runtime, kernel, copy, collective = DEVICES[device]
    one = Writer()
    one.step(0, 0, 1_000)
    for name, category, start, end, stream in (
        ("mm", kernel, 100, 400, 1),
        (collective, kernel, 300, 600, 2),
        ("dma_request" if device == "mtia" else "Memcpy HtoD", copy, 650, 700, 3),
    ):
        one.correlation += 1
        args = {"correlation": one.correlation}
        one._add(runtime, "launch", 7, 100, start - 50, start - 45, dict(args))
        one._add(category, name, 0, stream, start, end, {"device": 0, "stream": stream, **args})
    if device == "mtia":
        one._add("mtia_ccp_events", "event_wait", 0, 2, 700, 900, {"stream": 2})
    return one.write(tmp_path)


@pytest.mark.parametrize("device", DEVICES)
def test_devices_are_read_the_same(tmp_path, device):
    found = breakdown((read_trace(trace_of(device, tmp_path)),))
    shares = {state: round(1000 * found.share_of(state)) for state in State if found.share_of(state)}
    assert shares == {
        State.COMPUTING: 300,
        State.COMMUNICATION: 200,
        State.COPYING: 50,
        State.PREPARING: 50,
        State.CALLING: 100,
        State.IDLE: 300,
    }


def test_waits_on_a_stream_of_mtia_are_no_work(tmp_path):
    path = trace_of("mtia", tmp_path)
    assert counted(path, "hccl", (0, 1_000))["computing"] == 300


def test_calls_of_a_runtime_without_kernels_are_named(tmp_path):
    one = Writer()
    one.step(0, 0, 1_000)
    one.host_event("aten::mm", 100, 300)
    one.host_event("cudaLaunchKernel", 150, 160, category="cuda_runtime", correlation=1)
    missing = breakdown((read_trace(one.write(tmp_path)),)).missing
    assert any("1 calls of a device's runtime and no kernel" in line for line in missing)


def test_categories_of_a_device_that_are_not_read_are_named(tmp_path):
    one = Writer()
    one.step(0, 0, 1_000)
    one.kernel("gemm", 100, 300, called=50)
    one._add("npu_task", "matmul", 0, 3, 400, 500, {"stream": 3})
    one._add("cuda_sync", "Stream Synchronize", 0, 7, 400, 500, {"stream": 7})
    missing = breakdown((read_trace(one.write(tmp_path)),)).missing
    named = [line for line in missing if "not read" in line]
    assert named == ["events of a device in categories that are not read: npu_task"]
