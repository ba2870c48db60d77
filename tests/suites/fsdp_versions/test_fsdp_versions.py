"""fsdp_versions: events of both devices counted, and what late releases reserve, by closed formulas."""

import pytest
import torch

from harness.instruments.memory.caching_allocator import replay
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline
from suites.profiling import allocator_events
from suites.profiling.allocator_events import (
    MARK,
    AllocatorEvent,
    cpu_events,
    cpu_profile,
    cuda_events,
    reserved_by_step,
    summaries,
)

MiB = 2**20


def profiled(work):
    """Return the events of `work`, called once per step with the step's number."""
    with cpu_profile() as profile:
        for step in range(3):
            with torch.profiler.record_function(MARK):
                pass
            work(step)
    return cpu_events(profile)


def test_events_of_a_known_program():
    def work(step):
        first = torch.empty(1000)
        second = torch.empty(50 + step)
        first.sin_()
        second.sin_()
        second.cos_()
        del first  # two operations after its last use
        del second

    events = profiled(work)
    assert [(one.step, one.delta_B) for one in events if abs(one.delta_B) >= 200] == [
        (step, size_B) for step in range(3) for size_B in (4000, 200 + 4 * step, -4000, -(200 + 4 * step))
    ]
    held = [one.held_operations for one in events if one.delta_B == -4000]
    assert held == [2, 2, 2]
    assert all(one.held_s >= 0 for one in events if one.delta_B < 0 and one.held_s is not None)


def test_what_a_running_operation_releases_is_not_held():
    """A chain of autograd: the backward pass releases saved tensors as it uses them."""

    def work(step):
        leaf = torch.ones(500, requires_grad=True)
        leaf.sin().cos().sum().backward()

    released = [one for one in profiled(work) if one.delta_B < 0 and one.held_operations is not None]
    assert released
    assert min(one.held_operations for one in released) <= 1
    assert {sum(one.delta_B for one in profiled(work) if one.step == step) for step in range(3)} == {0}


def test_a_summary_counts_what_was_given():
    given = [  # step, MiB, storage, seconds held, operations held
        (0, 30, 1), (0, 20, 2), (0, -20, 2, 2.0, 10),
        (1, 20, 2), (1, 10, 3), (1, -20, 2, 1.0, 4), (1, -10, 3, 4.0, 1),
        (2, 20, 2), (2, 10, 3), (2, -20, 2), (2, -10, 3),
    ]  # fmt: skip
    events = [AllocatorEvent(step, size * MiB, *rest) for step, size, *rest in given]
    first, second, third = summaries(events)
    assert (first.allocations, first.releases, first.grown_B) == (2, 1, 30 * MiB)
    assert (second.allocations, second.releases, second.grown_B) == (2, 2, 0)
    assert [one.live_peak_B for one in (first, second, third)] == [50 * MiB, 60 * MiB, 60 * MiB]
    assert second.held_s == pytest.approx((20 * 1.0 + 10 * 4.0) / 30)
    assert second.held_operations == pytest.approx((20 * 4 + 10 * 1) / 30)
    assert [one.same_order for one in (first, second, third)] == [False, False, True]
    assert third.held_s is None  # no release has seconds
    reserved = replay(
        [(1, 30 * MiB, 0), (2, 20 * MiB, 0), (2, -20 * MiB, 0), (4, 20 * MiB, 0), (3, 10 * MiB, 0)]
    )
    assert third.reserved_peak_B == second.reserved_peak_B == reserved.peak_B


def test_events_of_a_memory_history():
    """Between a request and its completion lies the wait for the streams that recorded the block."""
    entries = [
        ("alloc", 1, 512, 0),
        ("alloc", 2, 1024, 1),
        ("segment_alloc", 9, 2048, 2),
        ("alloc", 3, 2048, 3),
        ("free_requested", 2, 1024, 5),
        ("free_requested", 3, 2048, 6),
        ("free_completed", 3, 2048, 6),
        ("free_completed", 2, 1024, 1_000_005),
    ]
    trace = [
        {"action": action, "addr": address, "size": size, "stream": 7, "time_us": time_us}
        for action, address, size, time_us in entries
    ]
    events = cuda_events(trace, [1, 5])
    assert [(one.step, one.delta_B, one.held_s) for one in events] == [
        (0, 1024, None),
        (0, 2048, None),
        (1, -2048, 0.0),
        (1, -1024, 1.0),
    ]
    assert {one.stream for one in events} == {7}


GATHERED_B = 20 * MiB


def gathers(units, kind="communication"):
    """Return a step that gathers unit after unit, each released before the next."""
    site = OpSite("forward 0", "gather", ())
    events = []
    for unit in range(units):
        events += [MemoryEvent(unit, GATHERED_B, site), MemoryEvent(unit, -GATHERED_B, site)]
    return Timeline(events, [kind] * units, 0, 512)


class Latest:
    """In place of random delays: always the longest."""

    def __init__(self, seed):
        pass

    def randint(self, low, high):
        return high


def test_each_gather_that_a_release_is_late_reserves_one_unit_more(monkeypatch):
    drawn = {reserved_by_step(gathers(6), 2, 3, seed)[-1] for seed in range(20)}
    assert drawn <= {GATHERED_B, 2 * GATHERED_B, 3 * GATHERED_B}
    assert max(drawn) == 3 * GATHERED_B
    monkeypatch.setattr(allocator_events, "Random", Latest)
    for most in range(4):
        assert reserved_by_step(gathers(6), most, 2, 0) == [(1 + most) * GATHERED_B] * 2


def test_other_releases_are_never_late():
    timeline = gathers(4, "activations")
    requested = replay([(one.storage, one.delta_B, 0) for one in timeline.events])
    assert reserved_by_step(timeline, 2, 3, 0) == [requested.peak_B] * 3


def test_what_a_step_leaves_is_released_in_the_next_one():
    """A loss lives until the next step has its own: one more than a step releases by itself."""
    site = OpSite("forward 0", "mean", ())
    before = [MemoryEvent(0, 30 * MiB, site)]
    steady = [MemoryEvent(1, 30 * MiB, site), MemoryEvent(0, -30 * MiB, site)]
    timeline = Timeline([*before, *steady], ["activations"] * 2, 1, 512)
    assert reserved_by_step(timeline, 0, 3, 0) == [60 * MiB] * 3
