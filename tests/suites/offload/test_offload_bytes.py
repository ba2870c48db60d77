"""What the offload suite's engines move and hold, of two ranks together, against sums by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from offload_ranks import BF16, BLOCKS, COUNT, REST, WORKLOAD, pools, subject_of

from harness.instruments.distributed.deepspeed_engine import missing

__all__ = ["pools"]

UP_AND_DOWN = {  # up, down: in bf16, in fp32
    "baseline": ((0, 0), (0, 0)),
    "fsdp2": ((0, 0), (0, 0)),
    "zero1": ((0, 0), (0, 0)),
    "zero2": ((0, 0), (0, 0)),
    "zero3": ((0, 0), (0, 0)),
    "host_update": ((2, 2), (4, 4)),  # the least: parameters up, gradients down
    "zero1_offload": ((2, 4), (4, 4)),  # gradients are made fp32 before they go
    "zero2_offload": ((2, 4), (4, 4)),
    # Gradients go down as they are, up again, are widened, and go down as fp32.
    "zero3_offload": ((2 + 2, 2 + 4), (4 + 4, 4 + 4)),
    # fp32 shards up for the forward pass, those of blocks again for the backward pass; fp32 gradients down.
    "fsdp2_offload": ((4 * (COUNT + BLOCKS) / COUNT, 4),) * 2,
}
EXACT = ("baseline", "fsdp2", "host_update", "fsdp2_offload")  # deepspeed moves a number or two beside


@pytest.fixture
def steady(pools):
    """What ranks return of a steady step."""

    def returned(name, workload=BF16):
        pools.pool(workload.dp_size).call("frozen_on_rank:settle")
        return pools.call("footprint", subject_of(name, workload))

    return returned


CASES = [(name, "bf16") for name in UP_AND_DOWN] + [
    (name, "fp32") for name in ("host_update", "zero2_offload", "zero3_offload", "fsdp2_offload")
]
"""In fp32, those that move anything; `zero1_offload` moves what `zero2_offload` does."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_bytes_moved_are_those_by_hand(steady, name, precision):
    returned = steady(name, replace(WORKLOAD, precision=precision))
    moved = tuple(sum(one[way] for one in returned) / COUNT for way in ("up_B", "down_B"))
    expected = UP_AND_DOWN[name][precision == "fp32"]
    slack = 1e-9 if name in EXACT else 2e-3
    assert moved == pytest.approx(expected, rel=slack, abs=slack)


def test_the_least_traffic_to_the_byte_and_each_rank_its_share(steady):
    returned = steady("host_update")
    assert sum(one["up_B"] for one in returned) == sum(one["down_B"] for one in returned) == 2 * COUNT
    for one in returned:
        assert one["up_B"] == one["down_B"]
        assert one["up_B"] == pytest.approx(COUNT, rel=0.1)


@pytest.mark.slow
def test_parameters_that_lie_on_the_host_are_fetched_for_each_pass(steady):
    """Gradients up once more (2); parameters for the forward pass (2), and for the backward pass those that
    it does not find there still."""
    returned = steady("zero3_offload_params")
    assert 4 * COUNT <= sum(one["up_B"] for one in returned) <= 6.01 * COUNT
    assert sum(one["down_B"] for one in returned) == pytest.approx(6 * COUNT, rel=2e-3)


SENT = {  # times what a rank of a ring passes on, (ranks - 1) / ranks of the model
    "baseline": 2,  # an all-reduce
    "zero1": 2 + 1,  # deepspeed reduces gradients by an all-reduce, and gathers parameters
    "zero2": 2 + 1,
    "fsdp2": 1 + (2 * BLOCKS + REST) / COUNT,  # what is around the blocks is not gathered again
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("dp_size", [2, 3])
def test_a_rank_sends_the_bytes_of_its_rings(steady, name, dp_size):
    workload = replace(WORKLOAD, dp_size=dp_size)
    ring_B = 4 * COUNT * (dp_size - 1) / dp_size
    for one in steady(name, workload):
        for sent_B in one["sent_B"]:
            assert sent_B / ring_B == pytest.approx(SENT[name], rel=0.03)  # and gloo's heads


@pytest.mark.slow
def test_stage_3_gathers_again_what_the_backward_pass_does_not_find(steady):
    """A reduce-scatter, an all-gather, and part of another."""
    for one in steady("zero3", WORKLOAD):
        for sent_B in one["sent_B"]:
            assert 2 <= sent_B / (4 * COUNT / 2) <= 3.03


ON_HOST = {  # in bf16, in fp32
    "baseline": (0, 0),
    "host_update": (2 + 2 + 4 + 4 + 8, 4 + 4 + 4 + 4 + 8),  # gradient and parameter to send; fp32; moments
    "fsdp2_offload": (16, 16),  # fp32 parameters, gradients, moments
    "zero3_offload": (2 + 4 + 4 + 8, 4 + 4 + 4 + 8),  # gradients as they came; fp32; moments
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "bf16") for name in ON_HOST] + [(name, "fp32") for name in ON_HOST if name != "baseline"],
)
def test_bytes_on_the_host_are_those_by_hand(steady, name, precision):
    returned = steady(name, replace(WORKLOAD, precision=precision))
    held = sum(one["host_B"] for one in returned) / COUNT
    assert held == pytest.approx(ON_HOST[name][precision == "fp32"], rel=1e-9 if name in EXACT else 2e-3)


ON_DEVICE = {  # in bf16: parameters, gradients, states, over two ranks where a stage shards them
    "baseline": 4 + 4 + 8,
    "zero1": 2 + 2 + 12 / 2,
    "zero2": 2 + (2 + 12) / 2,
    "zero3": (2 + 2 + 12) / 2,
    "fsdp2": (4 + 4 + 8) / 2,
    "zero1_offload": 2 + 2,
    "zero2_offload": 2 + 2 / 2,
    "zero3_offload": 2 / 2,
    "host_update": 2,
    "fsdp2_offload": 0,
    "zero3_offload_params": 0,
}
APART = 5
"""Bytes per parameter between two formulas: buffers and activations of a tiny model then change no order."""


@pytest.mark.slow
def test_peaks_fall_as_the_formulas_do(steady):
    reason = missing("cpu_adam")
    if reason:
        pytest.skip(reason)
    peaks = {name: max(max(one["peaks_B"]) for one in steady(name)) / COUNT for name in ON_DEVICE}
    for name, least in ON_DEVICE.items():
        assert peaks[name] >= least, name
    compared = 0
    for one, other in combinations(ON_DEVICE, 2):
        if abs(ON_DEVICE[one] - ON_DEVICE[other]) >= APART:
            compared += 1
            assert (peaks[one] > peaks[other]) == (ON_DEVICE[one] > ON_DEVICE[other]), (one, other, peaks)
    assert compared > 30
