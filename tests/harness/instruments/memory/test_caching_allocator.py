"""The model of CUDA's caching allocator against sequences computed by hand from its documented rules."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("request_B", "reserved_B"),
    [
        (1, 2 * MiB),
        (MiB, 2 * MiB),
        (MiB + 1, 20 * MiB),
        (10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB),
        (10 * MiB + 1, 12 * MiB),
        (33 * MiB, 34 * MiB),
    ],
)
def test_the_first_segment(request_B, reserved_B):
    allocator = CachingAllocator()
    allocator.allocate(request_B)
    assert allocator.reserved_B == reserved_B


def test_requests_are_rounded():
    assert [round_size(one) for one in (1, 512, 513, 1200)] == [512, 512, 1024, 1536]
    # the example of the documentation of roundup_power2_divisions, in KiB: 1200 of 4 divisions becomes 1280
    assert round_size(1200 * 1024, 4) == 1280 * 1024
    assert round_size(1024 * 1024, 4) == 1024 * 1024
    assert round_size(1793 * 1024, 4) == 2048 * 1024


def test_small_blocks_share_a_segment_of_2_mib():
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.allocate(512)
    assert allocator.reserved_B == 2 * MiB
    allocator.allocate(1)
    assert allocator.reserved_B == 4 * MiB


def test_the_smallest_free_block_that_fits_is_taken():
    allocator = CachingAllocator()
    first, second = allocator.allocate(30 * MiB), allocator.allocate(12 * MiB)
    allocator.release(first)
    allocator.release(second)
    assert allocator.allocate(11 * MiB).address == second.address
    assert allocator.reserved_B == 42 * MiB


def test_a_large_block_is_split_where_more_than_1_mib_is_left():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(20 * MiB))
    kept = allocator.allocate(19 * MiB)  # 1 MiB left: not split
    assert kept.size_B == allocator.allocated_B == 20 * MiB
    allocator.release(kept)
    split = allocator.allocate(19 * MiB - 512)
    assert split.size_B == 19 * MiB - 512
    allocator.allocate(MiB + 512)
    assert allocator.reserved_B == 20 * MiB


def test_free_neighbours_merge():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MiB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.release(block)
    allocator.allocate(15 * MiB)
    assert allocator.reserved_B == 20 * MiB


def test_fragments_are_not_joined():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MiB) for _ in range(4)]
    allocator.release(blocks[0])
    allocator.release(blocks[2])
    allocator.allocate(8 * MiB)
    assert allocator.reserved_B == 40 * MiB


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(30 * MiB, stream=1))
    allocator.allocate(30 * MiB, stream=2)
    assert allocator.reserved_B == 60 * MiB


def test_an_expandable_segment_grows_by_pages():
    allocator = CachingAllocator(EXPANDABLE)
    first = allocator.allocate(30 * MiB)
    assert allocator.reserved_B == 40 * MiB  # two pages of 20 MiB
    second = allocator.allocate(15 * MiB)
    assert allocator.reserved_B == 60 * MiB  # the free 10 MiB at its end are extended by a page
    allocator.release(first)
    allocator.allocate(31 * MiB)  # 15 MiB free at the end: one page more; the 30 MiB in front are too few
    assert allocator.reserved_B == 80 * MiB
    assert second.address == first.address + 30 * MiB
    allocator.allocate(100)
    assert allocator.reserved_B == 82 * MiB  # small blocks have a segment of their own, of pages of 2 MiB


def test_the_largest_request_decides_what_an_expandable_segment_holds():
    """Increasing sizes, each released before the next, fit no segment that is there."""
    events = []
    for index, size in enumerate(range(20, 200, 20)):
        events += [(index, size * MiB, 0), (index, -size * MiB, 0)]
    assert replay(events, EXPANDABLE).peak_B == 180 * MiB
    assert replay(events).peak_B == sum(range(20, 200, 20)) * MiB


@pytest.mark.parametrize("options", [AllocatorSettings(), EXPANDABLE])
def test_cached_segments_are_released_where_the_device_is_full(options):
    events = [(0, 60 * MiB, 0), (0, -60 * MiB, 0), (1, 80 * MiB, 1)]
    assert replay(events, options, 200 * MiB) == Reserved(140 * MiB, 80 * MiB, 0)
    assert replay(events, options, 100 * MiB) == Reserved(80 * MiB, 80 * MiB, 1)
    with pytest.raises(DeviceFullError, match="do not fit"):
        replay(events, options, 79 * MiB)


def test_a_segment_in_use_is_not_released():
    events = [(0, 5 * MiB, 0), (1, 13 * MiB, 0), (1, -13 * MiB, 0), (2, 40 * MiB, 0)]
    with pytest.raises(DeviceFullError):  # 15 of its 20 MiB are free
        replay(events, capacity_B=59 * MiB)
    assert replay(events, capacity_B=60 * MiB).retries == 0
    expandable = replay(events, EXPANDABLE, 60 * MiB)  # 5 MiB in use at its front; the rest extends
    assert expandable.peak_B == 60 * MiB


def test_blocks_above_the_split_limit_stay_whole():
    limited = AllocatorSettings(max_split_size_mb=50)
    allocator = CachingAllocator(limited)
    allocator.release(allocator.allocate(100 * MiB))
    allocator.allocate(40 * MiB)  # below the limit: takes no block above it
    assert allocator.reserved_B == 140 * MiB
    assert allocator.allocate(90 * MiB).size_B == 100 * MiB  # above it: unsplit, if less than 20 MiB are left
    allocator.allocate(60 * MiB)
    assert allocator.reserved_B == 200 * MiB


def test_oversize_segments_are_released_before_all_others():
    """60 MiB may not take the free 100 MiB, which are given back; the 10 MiB of the other stream are kept."""
    events = [(0, 100 * MiB, 0), (1, 10 * MiB, 1), (0, -100 * MiB, 0), (1, -10 * MiB, 1), (2, 60 * MiB, 0)]
    limited = AllocatorSettings(max_split_size_mb=50)
    assert replay(events, limited) == Reserved(170 * MiB, 110 * MiB, 0)
    assert replay(events, limited, 145 * MiB) == Reserved(110 * MiB, 110 * MiB, 0)


def test_garbage_collection_releases_old_segments_above_the_threshold():
    events = [(0, 40 * MiB, 0), (0, -40 * MiB, 0), (1, 30 * MiB, 1), (1, -30 * MiB, 1), (2, 50 * MiB, 0)]
    collected = AllocatorSettings(garbage_collection_threshold=0.5)
    assert replay(events, collected, 200 * MiB).peak_B == 120 * MiB  # 70 of 100 MiB: nothing to do
    assert replay(events, collected, 130 * MiB).peak_B == 80 * MiB  # 70 of 65: the older one is released


OPERATIONS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, 30),
        st.one_of(st.integers(1, 3000), st.integers(1, 90 * MiB)),
        st.integers(0, 1),
    ),
    max_size=120,
)
OPTIONS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_mb=st.sampled_from([None, 30]),
    roundup_power2_divisions=st.sampled_from([None, 4]),
    garbage_collection_threshold=st.sampled_from([None, 0.5]),
)


@settings(max_examples=150, deadline=None, derandomize=True)
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
        check(allocator, live, capacity_B)


def check(allocator, live, capacity_B):
    assert sum(block.size_B for block in live) == allocator.allocated_B <= allocator.reserved_B
    assert capacity_B is None or allocator.reserved_B <= capacity_B
    free = [block for pool in allocator.pools.values() for _, _, block in pool.free]
    mapped = [*live, *free]
    assert sum(block.size_B for block in mapped) == allocator.reserved_B
    stretches = sorted((block.address, block.address + block.size_B) for block in mapped)
    assert all(end <= start for (_, end), (start, _) in pairwise(stretches))
    assert not any(
        block.after is not None and not block.after.allocated and block.after.mapped for block in free
    )
    assert {id(block) for block in live}.isdisjoint(id(block) for block in free)
