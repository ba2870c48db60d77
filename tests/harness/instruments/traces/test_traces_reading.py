"""Traces of several versions and vendors give the same columns; bad ones are refused in one line."""

import gzip
import json

import numpy as np
import pytest
from kineto_traces import EPOCH_NS, FORMATS, MAIN, Writer

from harness.instruments.traces import TraceError
from harness.instruments.traces.activity import PHASES, Activity, steps
from harness.instruments.traces.kineto import read_trace, read_traces
from harness.instruments.traces.trace import EventKind

US = 1000


def gpu_step(**given):
    """Return one step with a product, a collective and a copy; whole microseconds."""
    one = Writer(**given)
    one.step(3, 0, 100 * US)
    one.annotation("Optimizer.step#Adam.step", 80 * US, 95 * US)
    one.host_event("aten::linear", 5 * US, 12 * US)
    one.host_event("aten::mm", 6 * US, 11 * US)
    one.kernel("ampere_sgemm", 10 * US, 40 * US, called=8 * US)
    one.kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        30 * US,
        70 * US,
        called=20 * US,
        stream=13,
        **{"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 64, "Seq": 5},
    )
    one.kernel("Memcpy HtoD (Pinned -> Device)", 75 * US, 80 * US, called=72 * US, category="gpu_memcpy")
    one.kernel("multi_tensor_apply_kernel", 85 * US, 90 * US, called=82 * US)
    return one


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("version", FORMATS)
def test_each_version_gives_the_same_columns(tmp_path, version, gz):
    trace = read_trace(gpu_step(format=version).write(tmp_path, gz=gz))
    assert trace.has_device
    assert trace.devices == ("a device",)
    kernels = np.flatnonzero(trace.kind == EventKind.KERNEL)
    assert [(trace.start_ns[k] - EPOCH_NS, trace.end_ns[k] - EPOCH_NS) for k in kernels] == [
        (10 * US, 40 * US),
        (30 * US, 70 * US),
        (85 * US, 90 * US),
    ]
    launches = [trace.start_ns[trace.launch_of[k]] - EPOCH_NS for k in kernels]
    assert launches == [8 * US, 20 * US, 82 * US]
    activity = Activity(trace)
    assert [activity.communication[k] for k in kernels] == [False, True, False]
    assert activity.copying.sum() == 1
    assert activity.operation(int(kernels[1])) == "all_reduce"
    assert [activity.operation_names(int(k)) for k in kernels] == [
        "aten::linear",
        "all_reduce",
        "multi_tensor_apply_kernel",
    ]
    assert [PHASES[activity.phase[k]] for k in kernels] == ["forward", "forward", "optimizer"]
    (step,) = steps(trace)
    assert (step.number, step.start_ns - EPOCH_NS, step.end_ns - EPOCH_NS) == (3, 0, 100 * US)
    assert trace.tracks[step.track].name == ("thread 100 (python)")


@pytest.mark.parametrize("version", ["2.1", "2.4", "rocm"])
def test_nanoseconds_are_exact_also_since_the_epoch(tmp_path, version):
    """Microseconds since 1970 with three decimals need 61 bits; a float64 has 53."""
    one = Writer(format=version)
    one.step(0, 1, 999_999_999)
    times = [(17, 18), (1_234_567, 1_234_571), (999_999_001, 999_999_998)]
    for start, end in times:
        one.host_event("aten::add", start, end)
    trace = read_trace(one.write(tmp_path))
    ops = trace.kind == EventKind.OP
    read = zip(trace.start_ns[ops] - EPOCH_NS, trace.end_ns[ops] - EPOCH_NS, strict=True)
    assert [(int(a), int(b)) for a, b in read] == times


def test_work_launched_in_the_last_step_belongs_to_it(tmp_path):
    one = Writer()
    one.step(1, 0, 100)
    one.step(2, 100, 200)
    one.kernel("late", 150, 230, called=120)
    one.kernel("of another time", 300, 400, called=210)
    found = steps(read_trace(one.write(tmp_path)))
    assert [(s.start_ns - EPOCH_NS, s.end_ns - EPOCH_NS) for s in found] == [(0, 100), (100, 230)]


def test_ranks_come_in_order_with_their_world(tmp_path):
    for rank in (2, 0, 1):
        gpu_step(rank=rank, world_size=3).write(tmp_path, gz=rank == 1, name=f"host{9 - rank}.pt.trace.json")
    assert [trace.rank for trace in read_traces(tmp_path)] == [0, 1, 2]


def test_what_backward_launches_is_backward(tmp_path):
    one = Writer()
    one.step(0, 0, 100)
    one.host_event("autograd::engine::evaluate_function: MmBackward0", 20, 60, thread=101)
    one.kernel("forward", 10, 15, called=5)
    one.kernel("backward", 50, 70, called=30, thread=101)
    trace = read_trace(one.write(tmp_path))
    activity = Activity(trace)
    of = {trace.name(int(k)): PHASES[activity.phase[k]] for k in np.flatnonzero(activity.computing)}
    assert of == {"forward": "forward", "backward": "backward"}


def test_on_a_cpu_outermost_operators_compute_and_gloo_communicates(tmp_path):
    one = Writer()
    one.step(0, 0, 100)
    one.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10)
    one.host_event("aten::stack", 2, 8)
    one.host_event("aten::linear", 20, 30)
    one.host_event("aten::addmm", 22, 29)
    one.host_event("MmBackward0", 40, 50)  # a wrapper of the next
    one.host_event("aten::mm", 42, 48)
    one.host_event("graph_0_cpp_fused_add", 55, 60)  # of Inductor
    one.host_event("c10d::allreduce_", 60, 65)
    one.gloo("all_reduce", 61, 90)
    one.host_event("aten::pin_memory", 5, 95, thread=55)  # a thread of the loader
    trace = read_trace(one.write(tmp_path))
    activity = Activity(trace)
    names = sorted(trace.name(int(e)) for e in np.flatnonzero(activity.computing))
    assert names == ["aten::addmm", "aten::linear", "aten::mm", "graph_0_cpp_fused_add"]
    assert [trace.name(int(e)) for e in np.flatnonzero(activity.communication)] == ["gloo:all_reduce"]


def truncated(path):
    path.write_bytes(gpu_step().text().encode()[:-300])


def truncated_gzip(path):
    path.write_bytes(gzip.compress(gpu_step().text().encode())[:-60])


def no_events(path):
    one = Writer()
    one.step(0, 0, 10)
    one.write(path.parent, name=path.name)


def backwards(path):
    document = gpu_step().text().replace('"dur": 40.000', '"dur": -40.000')
    path.write_text(document)


def overlapping(path):
    one = gpu_step()
    one.step(4, 50 * US, 150 * US)
    one.write(path.parent, name=path.name)


def no_kernels_in_steps(path):
    one = Writer()
    one.step(0, 0, 100)
    one.kernel("later", 200, 210, called=190)
    one.write(path.parent, name=path.name)


BAD = {
    "nothing is there": (lambda path: None, "no trace can be read"),
    "empty": (lambda path: path.write_text(""), "is empty"),
    "truncated": (truncated, "is truncated"),
    "truncated gzip": (truncated_gzip, "the gzip file is truncated"),
    "binary": (lambda path: path.write_bytes(b"SQLite format 3\0"), "Nsight"),
    "a list": (lambda path: path.write_text('[{"ph": "X"}]'), "of another tool"),
    "another JSON": (lambda path: path.write_text('{"nodes": []}'), "no traceEvents"),
    "not JSON": (lambda path: path.write_text("{'traceEvents': []}"), "is not valid JSON"),
    "another type": (lambda path: path.write_text('{"traceEvents": 3}'), "is not a trace of torch.profiler"),
    "a page's trace": (
        lambda path: path.write_text(
            json.dumps(
                {"traceEvents": [{"ph": "X", "cat": "devtools.timeline", "name": "Paint", "ts": 1, "dur": 2}]}
            )
        ),
        "no operators and no kernels",
    ),
    "no events": (no_events, "no operators and no kernels"),
    "negative duration": (backwards, "ends before it starts"),
    "overlapping steps": (overlapping, "step 4 begins before step 3 has ended"),
    "no kernels in steps": (no_kernels_in_steps, "ProfilerActivity.CUDA"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, name):
    from harness.instruments.traces.breakdown import breakdown

    spoil, expected = BAD[name]
    path = tmp_path / "rank0.json"
    spoil(path)
    with pytest.raises(TraceError) as error:
        breakdown(read_traces(path))
    message = str(error.value)
    assert expected in message
    assert str(path) in message
    assert "\n" not in message
    assert "record" in message or "call prof.step()" in message


def of_ranks(tmp_path, *given):
    for i, one in enumerate(given):
        writer = gpu_step(**{k: v for k, v in one.items() if k != "late"})
        writer.shift_ns = one.get("late", 0)
        writer.write(tmp_path, name=f"{i}.json")


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 4}), "these are not of one run"),
        (({"rank": 1, "world_size": 2}, {"rank": 1, "world_size": 2}), "rank 1 is there twice"),
        (
            ({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2, "late": 10**9}),
            "these ranks do not belong together",
        ),
        ((), "no trace (.json or .json.gz) in this folder"),
    ],
)
def test_ranks_that_do_not_belong_together_are_refused(tmp_path, ranks, expected):
    of_ranks(tmp_path, *ranks)
    with pytest.raises(TraceError, match=r"record|give") as error:
        read_traces(tmp_path)
    assert expected in str(error.value)


def test_ranks_without_a_common_step_are_refused(tmp_path):
    from harness.instruments.traces.breakdown import breakdown

    for rank in (0, 1):
        one = Writer(rank=rank, world_size=2)
        one.step(rank, 0, 100)
        one.host_event("aten::mm", 10, 20)
        one.write(tmp_path)
    with pytest.raises(TraceError, match="no step in common"):
        breakdown(read_traces(tmp_path))


def test_the_thread_that_trains_is_that_of_the_steps(tmp_path):
    assert Activity(read_trace(gpu_step().write(tmp_path))).trace.tracks[0].thread == str(MAIN)
