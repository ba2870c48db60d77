"""Traces without ProfilerStep: steps of annotations, of the optimizer, of repeated kernels, or one step."""

import pytest
from kineto_traces import EPOCH_NS, Writer

from harness.instruments.traces.activity import find_steps
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_trace, read_traces

STEP = 1_000
FORWARD = ["embed", *["qkv", "attn", "proj", "mlp"] * 6, "head", "loss"]


def train(one, steps, optimizer=True, annotated="", begin=0, cut=0):
    """Write steps of the same kernels; of the last one only what begins before `cut`."""
    for number in range(steps):
        at = begin + number * STEP
        if annotated:
            one.annotation(annotated.format(number), at, at + STEP - 10)
        for i, name in enumerate(FORWARD):
            called = at + 10 + 20 * i
            if number < steps - 1 or not cut or called < at + cut:
                one.kernel(name, called + 5, called + 20, called=called)
        if optimizer and not (cut and number == steps - 1):
            one.annotation("Optimizer.step#AdamW.step", at + 800, at + 900)
            one.kernel("adam", at + 850, at + 880, called=at + 810)


def found(tmp_path, one):
    steps, how = find_steps(read_trace(one.write(tmp_path)))
    return [(step.start_ns - EPOCH_NS, step.end_ns - EPOCH_NS) for step in steps], how


def test_annotations_of_steps(tmp_path):
    one = Writer()
    train(one, 3, annotated="train_step {}")
    steps, how = found(tmp_path, one)
    assert [start for start, _ in steps] == [0, 1_000, 2_000]
    assert how == "3 steps are those of the annotation 'train_step N'"


def test_steps_of_the_optimizer(tmp_path):
    one = Writer()
    train(one, 4)
    steps, how = found(tmp_path, one)
    assert steps == [(10, 900), (900, 1_900), (1_900, 2_900), (2_900, 3_900)]
    assert how == "4 steps each end with Optimizer.step#AdamW.step"


def test_work_after_the_last_step_of_the_optimizer_is_no_step(tmp_path):
    one = Writer()
    train(one, 4, cut=300)
    steps, _ = found(tmp_path, one)
    assert len(steps) == 3


@pytest.mark.parametrize("cut", [0, 300])
def test_kernels_that_repeat(tmp_path, cut):
    one = Writer()
    train(one, 4, optimizer=False, cut=cut)
    steps, how = found(tmp_path, one)
    assert [start for start, _ in steps] == [15, 1_015, 2_015, 3_015][: len(steps)]
    assert how == f"{len(steps)} steps are repetitions of the same {len(FORWARD)} kernels"
    assert len(steps) == (3 if cut else 4)


def test_layers_that_repeat_within_a_step_are_no_steps(tmp_path):
    one = Writer()
    train(one, 1, optimizer=False)
    steps, how = found(tmp_path, one)
    assert steps == [(10, 550)]
    assert "whole trace" in how


def test_the_same_kernel_again_and_again_is_one_step(tmp_path):
    one = Writer()
    for i in range(40):
        one.kernel("gemm", 100 * i, 100 * i + 50, called=100 * i)
    assert len(found(tmp_path, one)[0]) == 1


def test_a_mark_on_the_device_alone_is_a_step(tmp_path):
    one = Writer()
    one._add("gpu_user_annotation", "ProfilerStep#4", 0, 7, 100, 500, {})
    one.kernel("gemm", 100, 400, called=50)
    steps, how = found(tmp_path, one)
    assert (steps, how) == ([(100, 500)], "")


def test_ranks_that_show_different_numbers_of_steps_are_one_step_each(tmp_path):
    for rank, steps in enumerate((2, 3)):
        one = Writer(rank=rank, world_size=2)
        train(one, steps)
        one.write(tmp_path)
    of = breakdown(read_traces(tmp_path))
    assert of.step_numbers == (0,)
    assert "whole trace" in of.steps_found
