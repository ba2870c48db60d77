"""The model of CUDA's caching allocator against sequences computed by hand from its documented rules."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.instruments.memory.caching_allocator import (
    AllocatorSettings,
    CachingAllocator,
    DeviceFullError,
    Reserved,
    replay,
    round_size,
)

MiB = 1024**2
EXPANDABLE = AllocatorSettings(expandable_segments=True)
LIMITED = AllocatorSettings(max_split_size_mb=50)
COLLECTED = AllocatorSettings(garbage_collection_threshold=0.5)
EACH_5_MIB = [(index, 5 * MiB, 0) for index in range(4)]
INCREASING = [(i, sign * 20 * i * MiB, 0) for i in range(1, 10) for sign in (1, -1)]
"""Each released before the next: fit no segment that is there."""


def of_MiB(*events):
    return [(block, round(size * MiB), stream) for block, size, stream in events]


OVERSIZE = of_MiB((0, 100, 0), (1, 10, 1), (0, -100, 0), (1, -10, 1), (2, 60, 0))
OLD = of_MiB((0, 40, 0), (0, -40, 0), (1, 30, 1), (1, -30, 1), (2, 50, 0))
HALF_USED = of_MiB((0, 5, 0), (1, 13, 0), (1, -13, 0), (2, 40, 0))
TWO_STREAMS = of_MiB((0, 60, 0), (0, -60, 0), (1, 80, 1))


def test_requests_are_rounded():
    assert [round_size(one) for one in (1, 512, 513, 1200)] == [512, 512, 1024, 1536]
    # the example of the documentation of roundup_power2_divisions, in KiB: 1200 of 4 divisions becomes 1280
    assert [round_size(one * 1024, 4) for one in (1200, 1024, 1793)] == [1280 * 1024, MiB, 2 * MiB]


@pytest.mark.parametrize(
    ("events", "options", "capacity_MiB", "peak_MiB"),
    [
        ([(0, 1, 0)], None, None, 2),
        ([(0, MiB, 0)], None, None, 2),
        ([(0, MiB + 1, 0)], None, None, 20),
        ([(0, 10 * MiB - 512, 0)], None, None, 20),
        ([(0, 10 * MiB, 0)], None, None, 10),
        ([(0, 10 * MiB + 1, 0)], None, None, 12),
        ([(0, 33 * MiB, 0)], None, None, 34),
        ([(i, 512, 0) for i in range(4096)], None, None, 2),  # small blocks share a segment
        ([(i, 512, 0) for i in range(4097)], None, None, 4),
        ([*EACH_5_MIB, *of_MiB((0, -5, 0), (2, -5, 0), (1, -5, 0), (4, 15, 0))], None, None, 20),  # merged
        ([*EACH_5_MIB, *of_MiB((0, -5, 0), (2, -5, 0), (4, 8, 0))], None, None, 40),  # fragments
        (of_MiB((0, 30, 1), (0, -30, 1), (1, 30, 2)), None, None, 60),  # streams share no block
        (INCREASING, None, None, 900),
        (INCREASING, EXPANDABLE, None, 180),
        (HALF_USED, None, 60, 60),
        (HALF_USED, EXPANDABLE, 60, 60),  # 5 MiB in use at its front; the rest extends
        (OVERSIZE, LIMITED, None, 170),
        (OVERSIZE, LIMITED, 145, 110),  # the free 100 MiB go first; the 10 MiB of the other stream are kept
        (OLD, COLLECTED, 200, 120),  # 70 of 100 MiB: nothing to do
        (OLD, COLLECTED, 130, 80),  # 70 of 65: the older one is released
    ],
)
def test_what_is_reserved_at_most(events, options, capacity_MiB, peak_MiB):
    found = replay(events, options or AllocatorSettings(), capacity_MiB and capacity_MiB * MiB)
    assert (found.peak_B, found.retries) == (peak_MiB * MiB, 0)


def test_a_large_block_is_split_where_more_than_1_mib_is_left():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(20 * MiB))
    kept = allocator.allocate(19 * MiB)  # 1 MiB left: not split
    assert kept.size_B == allocator.allocated_B == 20 * MiB
    allocator.release(kept)
    assert allocator.allocate(19 * MiB - 512).size_B == 19 * MiB - 512
    allocator.allocate(MiB + 512)
    assert allocator.reserved_B == 20 * MiB


@pytest.mark.parametrize("options", [AllocatorSettings(), EXPANDABLE])
def test_cached_segments_are_released_where_the_device_is_full_and_those_in_use_are_not(options):
    assert replay(TWO_STREAMS, options, 200 * MiB) == Reserved(140 * MiB, 80 * MiB, 0)
    assert replay(TWO_STREAMS, options, 100 * MiB) == Reserved(80 * MiB, 80 * MiB, 1)
    with pytest.raises(DeviceFullError, match="do not fit"):
        replay(TWO_STREAMS, options, 79 * MiB)
    with pytest.raises(DeviceFullError):  # 15 of its 20 MiB are free
        replay(HALF_USED, options, 59 * MiB)


SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 90 * MiB))
OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 30), SIZES, st.integers(0, 1)), max_size=120)
OPTIONS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_mb=st.sampled_from([None, 30]),
    roundup_power2_divisions=st.sampled_from([None, 4]),
    garbage_collection_threshold=st.sampled_from([None, 0.5]),
)


@settings(max_examples=80, derandomize=True)
@given(OPERATIONS, OPTIONS, st.sampled_from([None, 400 * MiB]))
def test_blocks_fill_segments_and_never_overlap(operations, options, capacity_B):
    allocator = CachingAllocator(options, capacity_B)
    live = []
    for release, index, size_B, stream in operations:
        if release and live:
            allocator.release(live.pop(index % len(live)))
        else:
            try:
                live.append(allocator.allocate(size_B, stream))
            except DeviceFullError:
                assert capacity_B is not None
        assert sum(block.size_B for block in live) == allocator.allocated_B <= allocator.reserved_B
        assert capacity_B is None or allocator.reserved_B <= capacity_B
        free = [block for pool in allocator.pools.values() for _, _, block in pool.free]
        mapped = [*live, *free]
        assert sum(block.size_B for block in mapped) == allocator.reserved_B
        stretches = sorted((block.address, block.address + block.size_B) for block in mapped)
        assert all(end <= start for (_, end), (start, _) in pairwise(stretches))
        assert not any(one.after and not one.after.allocated and one.after.mapped for one in free)
        assert {id(block) for block in live}.isdisjoint(id(block) for block in free)


def test_blocks_above_the_split_limit_stay_whole():
    allocator = CachingAllocator(LIMITED)
    allocator.release(allocator.allocate(100 * MiB))
    allocator.allocate(40 * MiB)  # below the limit: takes no block above it
    assert allocator.reserved_B == 140 * MiB
    assert allocator.allocate(90 * MiB).size_B == 100 * MiB  # above it: unsplit, if less than 20 MiB are left
    allocator.allocate(60 * MiB)
    assert allocator.reserved_B == 200 * MiB
