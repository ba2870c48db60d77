"""The blocks of CUDA's caching allocator and their sizes, for `caching_allocator`.

Constants and functions are those of c10/cuda/CUDACachingAllocator.cpp of torch 2.13, named behind each.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MiB = 1024**2
BLOCK_B = 512  # kMinBlockSize
SMALL_B = 1 * MiB  # kSmallSize: allocations up to it come from the pool of small blocks
SMALL_SEGMENT_B = 2 * MiB  # kSmallBuffer
LARGE_SEGMENT_B = 20 * MiB  # kLargeBuffer
SHARED_BELOW_B = 10 * MiB  # kMinLargeAlloc: smaller allocations share segments of LARGE_SEGMENT_B
ROUND_LARGE_B = 2 * MiB  # kRoundLarge

VIRTUAL_B = 5 * 2**50
"""Address space of a segment: a multiple of both page sizes, and never exhausted."""


class AllocatorBlock:
    """A stretch of one segment; `before` and `after` are its neighbours there."""

    __slots__ = ("address", "after", "allocated", "before", "cached_at", "mapped", "pool", "size_B")

    def __init__(self, pool: BlockPool, address: int, size_B: int, mapped: bool = True):
        self.pool, self.address, self.size_B, self.mapped = pool, address, size_B, mapped
        self.before: AllocatorBlock | None = None
        self.after: AllocatorBlock | None = None
        self.allocated = False
        self.cached_at = 0  # searches of large pools so far, for the garbage collection

    def insert_after(self, new: AllocatorBlock) -> None:
        """Make `new` the next block of the segment."""
        new.before, new.after = self, self.after
        if self.after is not None:
            self.after.before = new
        self.after = new

    @property
    def is_split(self) -> bool:
        """Return whether the segment has other blocks."""
        return self.before is not None or self.after is not None


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


def merge(block: AllocatorBlock) -> None:
    """Join the block with its neighbours if they are free and mapped as it is (try_merge_blocks)."""
    before, after = block.before, block.after
    if before is not None and not before.allocated and before.mapped == block.mapped:
        block.pool.remove(before)
        block.address, block.size_B = before.address, block.size_B + before.size_B
        block.before = before.before
        if block.before is not None:
            block.before.after = block
    if after is not None and not after.allocated and after.mapped == block.mapped:
        block.pool.remove(after)
        block.size_B += after.size_B
        block.after = after.after
        if block.after is not None:
            block.after.before = block


def round_size(size_B: int, divisions: int | None = None) -> int:
    """Return the bytes that a request takes (round_size, roundup_power2_next_division).

    They are a multiple of 512, or one of `divisions` steps from one power of two to the next.
    """
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
