"""Causes are named where they were put in, and almost never where nothing was."""

import random
from itertools import pairwise

import pytest
from kineto_traces import Writer

from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.causes import causes, sentence
from harness.instruments.traces.kineto import read_traces
from harness.instruments.traces.output import critical_path
from harness.instruments.traces.segments import State

NCCL = "ncclDevKernel_AllGather_RING_LL"
US = 1000


def training(
    folder, seed, steps=12, world=4, slow_rank=-1, slow=0, loading=0, gap=0, communication=300, host=""
):
    """Write ranks whose products take 500 us with some noise, then a gather that ends for all at once.

    In us, `slow` is added to the products of one rank, `loading` to each step, `gap` before two launches.
    """
    folder.mkdir(exist_ok=True)
    draw = random.Random(seed)
    writers = [Writer(rank=rank, world_size=world, host=host) for rank in range(world)]
    begin = 0
    for number in range(steps):
        ready = []
        for rank, one in enumerate(writers):
            at = begin + (10 + loading) * US
            if loading:
                one.annotation("enumerate(DataLoader)#_Iter.__next__", begin, at)
            for i in range(5):
                if i % 2:
                    at += gap * US
                length = round(draw.gauss(100, 8) * US) + (slow * US // 5 if rank == slow_rank else 0)
                one.kernel("gemm", at + 2 * US, at + 2 * US + length, called=at)
                at += 2 * US + length
            ready.append(at)
        end = max(ready) + round(draw.gauss(communication, 10) * US)
        for rank, one in enumerate(writers):
            one.kernel(NCCL, ready[rank], end, called=ready[rank] - US, stream=13)
            one.step(number, begin, end + 10 * US)
        begin = end + 10 * US
    for one in writers:
        one.write(folder)
    return breakdown(read_traces(folder))


def test_nothing_is_named_where_nothing_was_put_in(tmp_path):
    """One named cause in 40 traces would be more than the promised one in 100; the bound allows for luck."""
    runs = [training(tmp_path / str(seed), seed) for seed in range(40)]
    assert sum(bool(causes(run)) for run in runs) <= 1
    assert not any(causes(a, b) for a, b in pairwise(runs[:12]))


def test_a_slow_rank_is_named_with_its_own_reason_and_the_others_waiting(tmp_path):
    found = training(tmp_path, 1, slow_rank=2, slow=200)
    named = {(cause.state, cause.rank): cause for cause in causes(found)}
    assert named.keys() == {(State.WAITING_FOR_RANK, 2), (State.COMPUTING, 2)}
    for cause in named.values():
        assert cause.share == pytest.approx(200e-6 / found.step_s, abs=0.03)
    assert 0 < named[State.COMPUTING, 2].at_least < named[State.COMPUTING, 2].share
    text = sentence(found, causes(found))
    assert "waiting for rank 2" in text
    assert "computing of rank 2 longer than with the other ranks by" in text
    ranks = [part.rank for part in critical_path(found, 3)]
    assert ranks == [2, 0]  # all end together, after the gather in which rank 2 came last


@pytest.mark.parametrize(
    ("given", "state", "put_in_us"),
    [
        ({"loading": 150}, State.WAITING_FOR_DATA, 150),
        ({"gap": 60}, State.PREPARING, 120),
        ({"communication": 500}, State.COMMUNICATION, 200),
    ],
)
def test_what_all_ranks_have_is_named_against_a_reference(tmp_path, given, state, put_in_us):
    reference = training(tmp_path / "reference", 5)
    found = training(tmp_path / "found", 6, **given)
    named = [cause for cause in causes(found, reference) if cause.compared_with == "the reference"]
    assert [cause.state for cause in named] == [state]
    assert named[0].share == pytest.approx(put_in_us * 1e-6 / found.step_s, abs=0.03)
    if state == State.WAITING_FOR_DATA:
        assert any(cause.state == state and not cause.compared_with for cause in causes(found))
