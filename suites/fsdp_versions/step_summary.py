"""What an allocator did in each step: calls, peak, order, and how long memory outlives its last use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.instruments.memory.caching_allocator import AllocatorBlock, AllocatorSettings, CachingAllocator
from suites.fsdp_versions.allocator_events import AllocatorEvent


class StepSummary(NamedTuple):
    """One step. Peaks are of bytes live or reserved since the first event, and before it nothing was."""

    allocations: int
    releases: int
    live_peak_B: int
    reserved_peak_B: int  # of a model of CUDA's caching allocator that is given the same calls
    grown_B: int  # what was allocated and not released
    same_order: bool  # as the step before: sizes of allocations and releases, one after the other
    held_s: float | None  # after the last use, the mean over released bytes
    held_operations: float | None  # the same in operations


def summaries(
    events: Sequence[AllocatorEvent], settings: AllocatorSettings | None = None
) -> list[StepSummary]:
    """Return one summary per step, in order."""
    allocator, blocks = CachingAllocator(settings), dict[int, AllocatorBlock]()
    found: list[StepSummary] = []
    before: list[int] = []
    live_B = 0
    for step in range(1 + max((one.step for one in events), default=-1)):
        own = [one for one in events if one.step == step]
        order = [one.delta_B for one in own]
        live_peak_B = live_B
        allocator.peak_reserved_B = allocator.reserved_B
        for one in own:
            live_B += one.delta_B
            live_peak_B = max(live_peak_B, live_B)
            give(allocator, blocks, one)
        allocations = sum(delta_B > 0 for delta_B in order)
        found.append(
            StepSummary(
                allocations,
                len(order) - allocations,
                live_peak_B,
                allocator.peak_reserved_B,
                sum(order),
                order == before,
                mean_by_bytes([(one.delta_B, one.held_s) for one in own]),
                mean_by_bytes([(one.delta_B, one.held_operations) for one in own]),
            )
        )
        before = order
    return found


def give(allocator: CachingAllocator, blocks: dict[int, AllocatorBlock], event: AllocatorEvent) -> None:
    """Let the model of the allocator serve one event; a release of what it never allocated is left out."""
    if event.delta_B > 0:
        blocks[event.address] = allocator.allocate(event.delta_B, event.stream)
    elif event.address in blocks:
        allocator.release(blocks.pop(event.address))


def mean_by_bytes(held: Iterable[tuple[int, float | None]]) -> float | None:
    """Return the mean of what releases were held for, each with the weight of its bytes; None without any."""
    known = [(-delta_B, value) for delta_B, value in held if value is not None]
    total_B = sum(size_B for size_B, _ in known)
    return sum(size_B * value for size_B, value in known) / total_B if total_B else None
