"""Traces of several versions and vendors give the same columns, and steps with ProfilerStep or without."""

import numpy as np
import pytest
from kineto_traces import EPOCH_NS, Writer

from harness.instruments.traces import TraceError
from harness.instruments.traces.activity import Activity, find_steps
from harness.instruments.traces.kineto import read_trace, read_traces
from harness.instruments.traces.trace import EventKind


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
    found, _ = find_steps(read_trace(one.write(tmp_path)))
    assert [(s.start_ns - EPOCH_NS, s.end_ns - EPOCH_NS) for s in found] == [(0, 100), (100, 230)]


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


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([(2, 3, 0), (0, 3, 0), (1, 3, 0)], None),
        ([(0, 2, 0), (1, 4, 0)], "these are not of one run"),
        ([(1, 2, 0), (1, 2, 0)], "rank 1 is there twice"),
        ([(0, 2, 0), (1, 2, 10**9)], "these ranks do not belong together"),
        ([], "no trace (.json or .json.gz) in this folder"),
    ],
)
def test_ranks_come_in_order_and_those_that_do_not_belong_together_are_refused(tmp_path, ranks, expected):
    for i, (rank, world_size, late_ns) in enumerate(ranks):
        writer = Writer(rank=rank, world_size=world_size, shift_ns=late_ns)
        writer.step(3, 0, 100)
        writer.kernel("gemm", 10, 40, called=5)
        writer.write(tmp_path, gz=rank == 1, name=f"{i}.json")
    if expected is None:
        assert [trace.rank for trace in read_traces(tmp_path)] == [0, 1, 2]
        return
    with pytest.raises(TraceError) as error:
        read_traces(tmp_path)
    assert expected in str(error.value)


# Without ProfilerStep: steps of annotations, of the optimizer, of repeated kernels, or one step.

FORWARD = ["embed", *["qkv", "attn", "proj", "mlp"] * 6, "head", "loss"]


def train(one, steps, optimizer=True, annotated="", cut=0):
    """Write steps of 1000 ns of the same kernels; of the last one only what begins before `cut`."""
    for number in range(steps):
        at = number * 1_000
        last = cut and number == steps - 1
        if annotated:
            one.annotation(annotated.format(number), at, at + 990)
        for i, name in enumerate(FORWARD):
            if not last or 10 + 20 * i < cut:
                one.kernel(name, at + 15 + 20 * i, at + 30 + 20 * i, called=at + 10 + 20 * i)
        if optimizer and not last:
            one.annotation("Optimizer.step#AdamW.step", at + 800, at + 900)
            one.kernel("adam", at + 850, at + 880, called=at + 810)


def found(tmp_path, one):
    steps, how = find_steps(read_trace(one.write(tmp_path)))
    return [(step.start_ns - EPOCH_NS, step.end_ns - EPOCH_NS) for step in steps], how


@pytest.mark.parametrize(
    ("given", "starts", "how"),
    [
        ({"steps": 3, "annotated": "train_step {}"}, [0, 1_000, 2_000], "annotation 'train_step N'"),
        (
            {"steps": 4, "optimizer": False},
            [15, 1_015, 2_015, 3_015],
            "4 steps are repetitions of the same 27",
        ),
        ({"steps": 4, "optimizer": False, "cut": 300}, [15, 1_015, 2_015], "3 steps are repetitions"),
        ({"steps": 1, "optimizer": False}, [10], "whole trace"),  # layers that repeat are no steps
    ],
)
def test_steps_are_found_by_what_repeats(tmp_path, given, starts, how):
    one = Writer()
    train(one, **given)
    steps, said = found(tmp_path, one)
    assert [start for start, _ in steps] == starts
    assert how in said
