"""What an allocator did in each step: calls, peak, order, and how long memory outlives its last use.

torch's profiler on a CPU and the memory history on CUDA give the same events. Of a dry run, late releases
such as those of FSDP1 are replayed: see `DelayedAllocator`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import torch

from harness.instruments.distributed.rank_worker import RankState
from harness.instruments.memory.caching_allocator import AllocatorBlock, CachingAllocator
from harness.instruments.memory.memory_timeline import MemoryEvent, Timeline
from harness.instruments.timing.device_telemetry import telemetry_of
from harness.instruments.torch_internals import require_tried_version
from suites.training.on_rank import device
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

MARK = "fsdp_versions.step:"  # begins the name of the range with which a step begins

HISTORY = 10_000_000
"""Most entries of CUDA's history that are kept: a step of 8 billion parameters has some ten thousand."""


class AllocatorEvent(NamedTuple):
    """One allocation (`delta_B` > 0) or release, in the order in which they took place.

    `held_s` and `held_operations`: of a release, how long after the last use, and after how many further
    operations; None where that is unknown. On CUDA `held_s` is from the request to the completion.
    """

    step: int
    delta_B: int
    address: int
    held_s: float | None = None
    held_operations: int | None = None
    stream: int = 0


def cpu_profile() -> Any:
    """Return a profiler of the CPU's allocations, and of operations with the storages that they read."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    return torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True)


def cpu_events(profile: Any) -> list[AllocatorEvent]:
    """Return the events from the first marked step on."""
    require_tried_version()
    nodes = sorted(
        _nodes(profile.profiler.kineto_results.experimental_event_tree()),
        key=lambda one: one[0].start_time_ns,
    )
    begins_ns = [node.start_time_ns for node, is_operation in nodes if is_operation]
    used_ns: dict[int, int] = {}  # when the last use of a storage ended, by address
    events: list[AllocatorEvent] = []
    step, number = -1, -1
    for node, is_operation in nodes:
        fields = node.extra_fields
        if is_operation:
            number += 1
            step += node.name.startswith(MARK)
            used_ns.update(dict.fromkeys(_storages(fields.inputs), node.end_time_ns))
        elif fields.alloc_size:
            end_ns = used_ns.pop(fields.ptr, None)
            if step < 0:
                continue
            if fields.alloc_size > 0 or end_ns is None:
                events.append(AllocatorEvent(step, fields.alloc_size, fields.ptr))
                continue
            idle_ns = max(node.start_time_ns - end_ns, 0)
            further = number - (bisect_left(begins_ns, end_ns) - 1)  # that began after the last use ended
            events.append(AllocatorEvent(step, fields.alloc_size, fields.ptr, idle_ns / 1e9, max(further, 0)))
    return events


def _nodes(roots: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Return every operation, with True, and every allocation on the CPU, with False."""
    from torch._C._profiler import _EventType

    stack = list(roots)
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        if node.tag == _EventType.TorchOp:
            yield node, True
        elif node.tag == _EventType.Allocation and node.extra_fields.device.type == "cpu":
            yield node, False


def _storages(inputs: Sequence[Any]) -> Iterator[int]:
    """Return the addresses of the storages among an operation's inputs, those in lists too."""
    for one in inputs:
        if isinstance(one, list):
            yield from _storages(one)
        elif hasattr(one, "storage_data_ptr") and one.storage_data_ptr:
            yield one.storage_data_ptr


def _trace() -> list[Any]:
    """Return the entries of CUDA's memory history so far."""
    traces: list[list[Any]] = torch.cuda.memory._snapshot()["device_traces"]
    return traces[torch.cuda.current_device()]


def cuda_events(trace: Sequence[Mapping[str, Any]], begins: Sequence[int]) -> list[AllocatorEvent]:
    """Return the events of CUDA's memory history from the first step on; steps begin at these entries.

    A release takes effect with `free_completed`, later than its request where another stream had recorded the
    block (torch.Tensor.record_stream). Names of actions: torch/cuda/_memory_viz.py.
    """
    events, requested_us = [], {}
    for index, entry in enumerate(trace):
        step = sum(begin <= index for begin in begins) - 1
        address, size_B, stream = entry.get("addr", 0), entry["size"], entry.get("stream", 0)
        if entry["action"] == "free_requested":
            requested_us[address] = entry["time_us"]
        if step < 0:
            continue
        if entry["action"] == "alloc":
            events.append(AllocatorEvent(step, size_B, address, stream=stream))
        elif entry["action"] == "free_completed":
            since_us = requested_us.pop(address, entry["time_us"])
            held_s = (entry["time_us"] - since_us) / 1e6
            events.append(AllocatorEvent(step, -size_B, address, held_s, None, stream))
    return events


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


def summaries(events: Sequence[AllocatorEvent]) -> list[StepSummary]:
    """Return one summary per step, in order."""
    allocator, blocks = CachingAllocator(), dict[int, AllocatorBlock]()
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


COUNTERS = {
    "allocations": "allocation.all.allocated",
    "releases": "allocation.all.freed",
    "live_peak_B": "allocated_bytes.all.peak",
    "reserved_peak_B": "reserved_bytes.all.peak",
    "retries": "num_alloc_retries",
}
"""CUDA's own counts (torch.cuda.memory_stats)."""


def allocator_steps(
    state: RankState, step: Mapping[str, Any], settling: int, steady: int
) -> list[dict[str, Any]]:
    """Return what the allocator did in each of `steady` updates of a new trainer after `settling` others."""
    if device().type == "cuda":
        return _on_cuda(step, settling, steady)
    with cpu_profile() as profile:
        trainer = Trainer(build_step(**step))
        for _ in range(settling + steady):
            with torch.profiler.record_function(MARK):
                pass
            trainer.train_step(trainer.text_batches())
    trainer.close()
    return [one._asdict() for one in summaries(cpu_events(profile))[settling:]]


def _on_cuda(step: Mapping[str, Any], settling: int, steady: int) -> list[dict[str, Any]]:
    """Return CUDA's own counts of each update, with the order and the delays of its memory history."""
    trainer = Trainer(build_step(**step), device())
    for _ in range(settling):
        trainer.train_step(trainer.text_batches())
    counted: list[dict[str, int]] = []
    begins: list[int] = []
    memory: Any = torch.cuda.memory
    memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=HISTORY)
    try:
        for _ in range(steady):
            torch.cuda.reset_peak_memory_stats(device())
            before = torch.cuda.memory_stats(device())
            begins.append(len(_trace()))
            trainer.train_step(trainer.text_batches())
            torch.cuda.synchronize(device())
            counted.append(since(before, torch.cuda.memory_stats(device())))
        found = summaries(cuda_events(_trace(), begins))
    finally:
        memory._record_memory_history(enabled=None)
    trainer.close()
    return [{**one._asdict(), **own} for one, own in zip(found, counted, strict=True)]


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of one step: peaks as they are, calls as differences."""
    return {
        name: after[counter] - (0 if counter.endswith("peak") else before[counter])
        for name, counter in COUNTERS.items()
    }


def clocks(state: RankState) -> list[tuple[str, str, float, str]]:
    """Return the device's clock as (metric, unit, value, method); none where it cannot be read."""
    telemetry = telemetry_of(device())
    readings = [] if telemetry is None else list(telemetry.readings())
    return [(one.metric, one.unit, one.value, one.method) for one in readings]


COMMUNICATION = "communication"

GATHER_STREAM = 1


def reserved_by_step(timeline: Timeline, most: int, steps: int, seed: int) -> list[int]:
    """Return the most bytes reserved in each of `steps` steady steps after those of the timeline."""
    model = DelayedAllocator(timeline.kinds, most, seed)
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

    The step after it releases the latter, such as its loss.
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

    FSDP1 gathers parameters in a stream of its own and marks the memory as used by the computation's
    (torch.Tensor.record_stream): a released block is reused only when the GPU has passed the release. FSDP2
    marks nothing. Here a release takes effect after up to `most` further allocations of such buffers, drawn
    at random. torch's FSDP1 waits once two gathered units are not yet released (limit_all_gathers,
    torch/distributed/fsdp/_limiter_utils.py), which bounds the delay by 2.
    """

    def __init__(self, kinds: Sequence[str], most: int, seed: int) -> None:
        self.allocator = CachingAllocator()
        self._kinds, self._most, self._random = kinds, most, Random(seed)
        self._blocks: dict[int, AllocatorBlock] = {}
        self._late: list[tuple[int, AllocatorBlock]] = []  # (the allocation that it waits for, the block)
        self._gathered = 0

    def serve(self, events: Sequence[MemoryEvent]) -> None:
        """Allocate and release in order."""
        for storage, delta_B, _, stream in events:
            gathers = self._kinds[storage] == COMMUNICATION
            if delta_B > 0:
                if gathers:  # what has waited for as many allocations as it should is released before
                    due = [block for when, block in self._late if when <= self._gathered]
                    self._late = [one for one in self._late if one[0] > self._gathered]
                    for block in due:
                        self.allocator.release(block)
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
