"""A model of CUDA's caching allocator: how many bytes it reserves for a sequence of allocations.

Written from the rules in c10/cuda/CUDACachingAllocator.cpp of torch 2.13; each method names the function that
it follows. Left out: private pools of CUDA graphs, and `record_stream`, which delays releases by timing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

MiB = 1024**2
BLOCK_B = 512  # kMinBlockSize
SMALL_B = 1 * MiB  # kSmallSize: allocations up to it come from the pool of small blocks
SMALL_SEGMENT_B = 2 * MiB  # kSmallBuffer
LARGE_SEGMENT_B = 20 * MiB  # kLargeBuffer
SHARED_BELOW_B = 10 * MiB  # kMinLargeAlloc: smaller allocations share segments of LARGE_SEGMENT_B
ROUND_LARGE_B = 2 * MiB  # kRoundLarge

VIRTUAL_B = 5 * 2**50  # address space of a segment: a multiple of both page sizes, and never exhausted


@dataclass(slots=True, eq=False)
class AllocatorBlock:
    """A stretch of one segment; `before` and `after` are its neighbours there."""

    pool: BlockPool
    address: int
    size_B: int
    mapped: bool = True
    before: AllocatorBlock | None = None
    after: AllocatorBlock | None = None
    allocated: bool = False
    cached_at: int = 0  # searches of large pools so far, for the garbage collection

    @property
    def is_split(self) -> bool:
        """Return whether the segment has other blocks."""
        return self.before is not None or self.after is not None


def _link(before: AllocatorBlock | None, after: AllocatorBlock | None) -> None:
    """Make two blocks neighbours; None: the end of a segment."""
    if before is not None:
        before.after = after
    if after is not None:
        after.before = before


class BlockPool:
    """The free blocks of one stream and size class: by size, then address; unmapped ones by address."""

    def __init__(self, small: bool):
        self.small = small
        self.free: list[tuple[int, int, AllocatorBlock]] = []
        self.unmapped: list[tuple[int, AllocatorBlock]] = []
        self.page_B = SMALL_SEGMENT_B if small else LARGE_SEGMENT_B

    def add(self, block: AllocatorBlock) -> None:
        """Make a mapped block available."""
        insort(self.free, (block.size_B, block.address, block))

    def remove(self, block: AllocatorBlock) -> None:
        """Take a free block out of its list."""
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size_B, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]


def _split(block: AllocatorBlock, size_B: int, mapped: bool = True) -> AllocatorBlock:
    """Cut the block to a size; return the rest, which is its next neighbour."""
    rest = AllocatorBlock(block.pool, block.address + size_B, block.size_B - size_B, mapped)
    block.size_B = size_B
    _link(rest, block.after)
    _link(block, rest)
    return rest


def _merge(block: AllocatorBlock) -> None:
    """Join the block with its neighbours if they are free and mapped as it is (try_merge_blocks)."""
    for one in (block.before, block.after):
        if one is not None and not one.allocated and one.mapped == block.mapped:
            block.pool.remove(one)
            block.address, block.size_B = min(block.address, one.address), block.size_B + one.size_B
            if one is block.before:
                _link(one.before, block)
            else:
                _link(block, one.after)


def round_size(size_B: int, divisions: int | None = None) -> int:
    """Return the bytes of a request: a multiple of 512, or a step between powers of two (round_size)."""
    if divisions is not None and divisions > 1 and size_B > BLOCK_B * divisions:
        power = 1 << (size_B.bit_length() - 1)
        return round_up(size_B, power >> (divisions.bit_length() - 1))
    return max(round_up(size_B, BLOCK_B), BLOCK_B)


def segment_size(size_B: int) -> int:
    """Return the bytes of a new segment for a rounded request (get_allocation_size)."""
    if size_B <= SMALL_B:
        return SMALL_SEGMENT_B
    return LARGE_SEGMENT_B if size_B < SHARED_BELOW_B else round_up(size_B, ROUND_LARGE_B)


def round_up(size_B: int, step_B: int) -> int:
    """Return the next multiple of `step_B`."""
    return -(-size_B // step_B) * step_B


def can_reach(block: AllocatorBlock) -> int:
    """Return the bytes to which a free block can grow in its segment."""
    after = block.after
    return block.size_B + (after.size_B if after is not None and not after.mapped else 0)


def free_from(block: AllocatorBlock | None, enough_B: int) -> int:
    """Return the bytes of free blocks in a row, mapped or not; counted until they are enough."""
    size_B = 0
    while block is not None and not block.allocated and size_B < enough_B:
        size_B += block.size_B
        block = block.after
    return size_B


class DeviceFullError(Exception):
    """The allocation does not fit the device, after all cached segments were released."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Options of PYTORCH_CUDA_ALLOC_CONF that change how much is reserved, by their names there.

    `garbage_collection_threshold`: a share of the capacity; torch ignores it unless the process limits its
    memory (`set_per_process_memory_fraction`), and so does this model without a capacity.
    """

    expandable_segments: bool = False
    max_split_size_mb: int | None = None
    roundup_power2_divisions: int | None = None
    garbage_collection_threshold: float | None = None


class CachingAllocator:
    """One device's allocator. `capacity_B`: what it can reserve; None: without limit.

    Segments get increasing addresses; among free blocks of one size, which address is lower can differ on a
    real device.
    """

    def __init__(self, settings: AllocatorSettings | None = None, capacity_B: float | None = None):
        self.settings = settings or AllocatorSettings()
        self.capacity_B = inf if capacity_B is None else capacity_B
        self.reserved_B = self.allocated_B = self.peak_reserved_B = self.peak_allocated_B = 0
        self.retries = 0  # releases of all cached segments since the device was full (num_alloc_retries)
        self.pools: dict[tuple[int, bool], BlockPool] = {}
        self._segments = 0
        self._searches = 0  # of large pools
        megabytes = self.settings.max_split_size_mb
        self._max_split_B = inf if megabytes is None else megabytes * MiB

    def allocate(self, size_B: int, stream: int = 0) -> AllocatorBlock:
        """Return a block of at least `size_B` bytes (malloc); raises DeviceFullError where none fits."""
        size_B = round_size(size_B, self.settings.roundup_power2_divisions)
        pool = self._pool(stream, size_B <= SMALL_B)
        block = self._best_fit(pool, size_B) or self._grow(pool, size_B)
        if self._should_split(block, size_B):
            self._cache(_split(block, size_B))
        block.allocated = True
        self.allocated_B += block.size_B
        self.peak_allocated_B = max(self.peak_allocated_B, self.allocated_B)
        return block

    def release(self, block: AllocatorBlock) -> None:
        """Make the block available to its stream, merged with free neighbours (free_block)."""
        if not block.allocated:
            raise ValueError("the block is not allocated")
        block.allocated = False
        self.allocated_B -= block.size_B
        _merge(block)
        self._cache(block)

    # -- finding a block

    def _pool(self, stream: int, small: bool) -> BlockPool:
        if (stream, small) not in self.pools:
            self.pools[stream, small] = BlockPool(small)
        return self.pools[stream, small]

    def _best_fit(self, pool: BlockPool, size_B: int) -> AllocatorBlock | None:
        """Take the smallest free block that is large enough (get_free_block)."""
        self._searches += not pool.small
        at = bisect_left(pool.free, (size_B,))
        if at == len(pool.free):
            return None
        if self.settings.expandable_segments:
            while at + 1 < len(pool.free) and can_reach(pool.free[at + 1][2]) < can_reach(pool.free[at][2]):
                at += 1
        found_B, _, block = pool.free[at]
        oversize = size_B >= self._max_split_B
        if found_B >= (size_B + LARGE_SEGMENT_B if oversize else self._max_split_B):
            return None
        del pool.free[at]
        return block

    def _should_split(self, block: AllocatorBlock, size_B: int) -> bool:
        rest_B = block.size_B - size_B
        if block.pool.small or self.settings.expandable_segments:
            return rest_B >= BLOCK_B
        return size_B < self._max_split_B and rest_B > SMALL_B

    def _grow(self, pool: BlockPool, size_B: int) -> AllocatorBlock:
        """Reserve more; release cached segments where the device is full (malloc)."""
        self._collect_garbage()
        block = self._new_block(pool, size_B)
        if block is None and self._release_oversize(pool, size_B):
            block = self._new_block(pool, size_B)
        if block is None:
            self.release_cached()
            self.retries += 1
            block = self._new_block(pool, size_B)
        if block is None:
            raise DeviceFullError(
                f"{size_B} B do not fit: {self.reserved_B} B of {self.capacity_B:.0f} B are reserved"
            )
        return block

    def _new_block(self, pool: BlockPool, size_B: int) -> AllocatorBlock | None:
        """Return a new segment as one block (alloc_block); None where the device is full."""
        if self.settings.expandable_segments:
            return self._extend(pool, size_B)
        segment_B = segment_size(size_B)
        if not self._reserve(segment_B):
            return None
        self._segments += 1
        return AllocatorBlock(pool, self._segments * VIRTUAL_B, segment_B)

    def _reserve(self, size_B: int) -> bool:
        if self.reserved_B + size_B > self.capacity_B:
            return False
        self.reserved_B += size_B
        self.peak_reserved_B = max(self.peak_reserved_B, self.reserved_B)
        return True

    # -- expandable segments: one for each pool, mapped page by page

    def _extend(self, pool: BlockPool, size_B: int) -> AllocatorBlock | None:
        """Map pages at the first place with room (try_allocate_expandable_block); None if there is none."""
        block = self._with_room(pool, size_B)
        if not block.mapped and not self._map(block, min(block.size_B, size_B)):
            return None
        while block.size_B < size_B:
            unmapped = block.after
            assert unmapped is not None  # `_with_room`
            if not self._map(unmapped, min(size_B - block.size_B, unmapped.size_B)):
                return None
            block = unmapped  # which took the free block before it
        pool.remove(block)
        return block

    def _with_room(self, pool: BlockPool, size_B: int) -> AllocatorBlock:
        """Return the first free block, mapped or not, with `size_B` from there on (find_expandable_block)."""
        for _, unmapped in pool.unmapped:
            before = unmapped.before
            first = unmapped if before is None or before.allocated else before
            if free_from(first, size_B) >= size_B:
                return first
        self._segments += 1
        segment = AllocatorBlock(pool, self._segments * VIRTUAL_B, VIRTUAL_B, mapped=False)
        pool.unmapped.append((segment.address, segment))
        return segment

    def _map(self, block: AllocatorBlock, size_B: int) -> bool:
        """Back the first bytes of an unmapped block by pages (map_block); False where the device is full."""
        pool = block.pool
        mapped_B = round_up(size_B, pool.page_B)
        if not self._reserve(mapped_B):
            return False
        pool.remove(block)
        block.mapped = True
        if mapped_B < block.size_B:
            rest = _split(block, mapped_B, mapped=False)
            insort(pool.unmapped, (rest.address, rest))
        _merge(block)
        self._cache(block)
        return True

    def _unmap(self, block: AllocatorBlock) -> None:
        """Give back the pages that lie in a free block alone (unmap_block)."""
        pool = block.pool
        start, end = block.address, block.address + block.size_B
        first, last = round_up(start, pool.page_B), end // pool.page_B * pool.page_B
        if first >= last:
            return
        pool.remove(block)
        if first > start:
            kept, block = block, _split(block, first - start)
            self._cache(kept)
        if last < end:
            self._cache(_split(block, last - first))
        block.mapped = False
        self.reserved_B -= block.size_B
        _merge(block)
        insort(pool.unmapped, (block.address, block))

    # -- releasing

    def release_cached(self) -> None:
        """Give back every segment that is free, and free pages (release_cached_blocks, empty_cache)."""
        for pool in self.pools.values():
            for _, _, block in list(pool.free):
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif not block.is_split:
                    self._release_segment(block)

    def _release_segment(self, block: AllocatorBlock) -> None:
        block.pool.remove(block)
        self.reserved_B -= block.size_B

    def _release_oversize(self, pool: BlockPool, size_B: int) -> bool:
        """Give back free segments that are never split, enough of them (release_available_cached_blocks)."""
        if self._max_split_B == inf or self.settings.expandable_segments:
            return False
        wanted_B = max(size_B, self._max_split_B)
        at = bisect_left(pool.free, (wanted_B,))
        if at < len(pool.free):
            self._release_segment(pool.free[at][2])
            return True
        released_B = 0
        while pool.free and released_B < wanted_B and pool.free[-1][0] >= self._max_split_B:
            released_B += pool.free[-1][0]
            self._release_segment(pool.free[-1][2])
        return released_B >= wanted_B

    def _collect_garbage(self) -> None:
        """Give back free segments older than average above a threshold (garbage_collect_cached_blocks)."""
        threshold = self.settings.garbage_collection_threshold
        if threshold is None or self.capacity_B == inf or self.settings.expandable_segments:
            return
        target_B = threshold * self.capacity_B
        while self.reserved_B > target_B:
            pools = [pool for pool in self.pools.values() if not pool.small]
            unsplit = [block for pool in pools for _, _, block in pool.free if not block.is_split]
            ages = [self._searches - block.cached_at for block in unsplit]
            for block, age in zip(unsplit, ages, strict=True):
                if age * len(ages) >= sum(ages):
                    self._release_segment(block)
            if not unsplit:
                return

    # -- blocks

    def _cache(self, block: AllocatorBlock) -> None:
        block.cached_at = self._searches
        block.pool.add(block)


class Reserved(NamedTuple):
    """The most bytes reserved at once, and how often cached segments were released for want of memory."""

    peak_B: int
    allocated_B: int
    retries: int


def replay(
    events: Iterable[tuple[int, int, int]],
    settings: AllocatorSettings | None = None,
    capacity_B: float | None = None,
) -> Reserved:
    """Return the bytes reserved for events (storage, bytes, stream), in order; bytes below zero release.

    A storage is allocated at once and released at once. Raises DeviceFullError at the first allocation that
    does not fit `capacity_B`.
    """
    allocator = CachingAllocator(settings, capacity_B)
    blocks: dict[int, AllocatorBlock] = {}
    for storage, delta_B, stream in events:
        if delta_B > 0:
            blocks[storage] = allocator.allocate(delta_B, stream)
        else:
            allocator.release(blocks.pop(storage))
    return Reserved(allocator.peak_reserved_B, allocator.peak_allocated_B, allocator.retries)
