"""What CUDA's allocator reserves where releases of communication buffers are late, by a model of it.

FSDP1 gathers parameters in a stream of its own and marks the memory as used by the computation's
(torch.Tensor.record_stream). The allocator then reuses a released block only when the GPU has passed the
release; how far the CPU is ahead decides what is reserved, and it differs from step to step. FSDP2 marks
nothing. The delay is imposed here: a release takes effect after up to `most` further allocations of
communication buffers, drawn at random. torch's FSDP1 waits once two gathered units are not yet released
(limit_all_gathers, torch/distributed/fsdp/_limiter_utils.py), which bounds the delay by 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from harness.instruments.memory.caching_allocator import AllocatorBlock, AllocatorSettings, CachingAllocator
from harness.instruments.memory.memory_timeline import MemoryEvent, Timeline

COMMUNICATION = "communication"

GATHER_STREAM = 1


def reserved_by_step(
    timeline: Timeline, most: int, steps: int, seed: int, settings: AllocatorSettings | None = None
) -> list[int]:
    """Return the most bytes reserved in each of `steps` steady steps after those of the timeline.

    Communication buffers are in a pool of their own, that of the stream that gathers.
    """
    model = DelayedAllocator(timeline.kinds, most, seed, settings)
    model.serve(timeline.events)
    steady = timeline.events[timeline.since :]
    inherited, kept = from_before(steady)
    reserved_B = []
    for _ in range(steps):
        model.rename(dict(zip(kept, inherited, strict=True)))
        model.allocator.peak_reserved_B = model.allocator.reserved_B
        model.serve(steady)
        reserved_B.append(model.allocator.peak_reserved_B)
    return reserved_B


def from_before(steady: Sequence[MemoryEvent]) -> tuple[list[int], list[int]]:
    """Return the storages that a step releases without having allocated them, and those that it leaves.

    The step after it releases the latter, such as its loss, where this one releases the former.
    """
    inherited: list[int] = []
    kept: list[int] = []
    for storage, delta_B, _, _ in steady:
        if delta_B > 0:
            kept.append(storage)
        elif storage in kept:
            kept.remove(storage)
        else:
            inherited.append(storage)
    return inherited, kept


class DelayedAllocator:
    """A model of the allocator in which communication buffers become free late.

    `most`: the largest delay, in allocations of such buffers; each delay is drawn from 0 to it.
    """

    def __init__(
        self, kinds: Sequence[str], most: int, seed: int, settings: AllocatorSettings | None = None
    ) -> None:
        self.allocator = CachingAllocator(settings)
        self._kinds, self._most, self._random = kinds, most, Random(seed)
        self._blocks: dict[int, AllocatorBlock] = {}
        self._late: list[tuple[int, AllocatorBlock]] = []  # (the allocation that it waits for, the block)
        self._gathered = 0

    def serve(self, events: Sequence[MemoryEvent]) -> None:
        """Allocate and release in order."""
        for storage, delta_B, _, stream in events:
            gathers = self._kinds[storage] == COMMUNICATION
            if delta_B > 0:
                if gathers:
                    self._release_due()
                    self._gathered += 1
                self._blocks[storage] = self.allocator.allocate(delta_B, GATHER_STREAM if gathers else stream)
            elif gathers and (delay := self._random.randint(0, self._most)):
                self._late.append((self._gathered + delay, self._blocks.pop(storage)))
            else:
                self.allocator.release(self._blocks.pop(storage))

    def rename(self, numbers: Mapping[int, int]) -> None:
        """Give live storages other numbers."""
        blocks = {new: self._blocks.pop(old) for old, new in numbers.items()}
        self._blocks.update(blocks)

    def _release_due(self) -> None:
        """Release what has waited for as many allocations as it should: before the next one is served."""
        due = [block for when, block in self._late if when <= self._gathered]
        self._late = [one for one in self._late if one[0] > self._gathered]
        for block in due:
            self.allocator.release(block)
