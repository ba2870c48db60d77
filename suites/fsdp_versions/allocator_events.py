"""What an allocator did in training steps, from a CPU's profile or from CUDA's memory history.

Both give the same events, so that `step_summary` counts them in one way.

What an allocator did in each step: calls, peak, order, and how long memory outlives its last use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from harness.instruments.memory.caching_allocator import AllocatorBlock, AllocatorSettings, CachingAllocator
from harness.instruments.torch_internals import require_tried_version

MARK = "fsdp_versions.step:"
"""Begins the name of the range with which a step begins."""

HISTORY = 10_000_000
"""Most entries of CUDA's history that are kept: a step of 8 billion parameters has some ten thousand."""


class AllocatorEvent(NamedTuple):
    """One allocation (`delta_B` > 0) or release, in the order in which they took place.

    `held_s` and `held_operations`: of a release, how long after the last use, and after how many further
    operations, those that others call counted too; None where that is unknown. On CUDA `held_s` is from the
    request to the completion, which waits for the streams that recorded the block.
    """

    step: int
    delta_B: int
    address: int
    held_s: float | None = None
    held_operations: int | None = None
    stream: int = 0


class Used(NamedTuple):
    """An operation that reads tensors: its place in the order of operations, and when it ran."""

    number: int
    begin_ns: int
    end_ns: int


@contextmanager
def cpu_profile() -> Iterator[Any]:
    """Return a profiler of the CPU's allocations, and of operations with the storages that they read."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profile:
        yield profile


def cpu_events(profile: Any) -> list[AllocatorEvent]:
    """Return the events from the first marked step on.

    Storages made before that step are released like any other.
    """
    require_tried_version()
    nodes = sorted(_nodes(profile.profiler.kineto_results.experimental_event_tree()), key=lambda one: one[0])
    begins_ns = [begin for begin, _, operation, _ in nodes if operation is not None]
    last: dict[int, Used] = {}  # by address
    events: list[AllocatorEvent] = []
    step, number = -1, -1
    for begin_ns, node, operation, allocation in nodes:
        if operation is not None:
            number += 1
            if node.name.startswith(MARK):
                step += 1
            for address in _storages(operation.inputs):
                last[address] = Used(number, begin_ns, node.end_time_ns)
        elif allocation is not None and allocation.alloc_size:
            address, size_B = allocation.ptr, allocation.alloc_size
            used = last.pop(address, None)
            if step < 0:
                continue
            if size_B > 0 or used is None:
                events.append(AllocatorEvent(step, size_B, address))
                continue
            idle_ns = max(begin_ns - used.end_ns, 0)
            further = number - (
                bisect_left(begins_ns, used.end_ns) - 1
            )  # that began after the last use ended
            events.append(AllocatorEvent(step, size_B, address, idle_ns / 1e9, max(further, 0)))
    return events


def _nodes(roots: Iterable[Any]) -> Iterator[tuple[int, Any, Any, Any]]:
    """Return (begin, node, its operation or None, its allocation or None) of every node that is one."""
    from torch._C._profiler import _EventType

    stack = list(roots)
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        kind, fields = node.tag, node.extra_fields
        if kind == _EventType.TorchOp:
            yield node.start_time_ns, node, fields, None
        elif kind == _EventType.Allocation and fields.device.type == "cpu":
            yield node.start_time_ns, node, None, fields


def _storages(inputs: Sequence[Any]) -> Iterator[int]:
    """Return the addresses of the storages among an operation's inputs, those in lists too."""
    for one in inputs:
        if isinstance(one, list):
            yield from _storages(one)
        elif hasattr(one, "storage_data_ptr") and one.storage_data_ptr:
            yield one.storage_data_ptr


def cuda_history(work: Callable[[Callable[[], None]], None]) -> Mapping[str, Any]:
    """Return CUDA's memory snapshot of `work`, which calls what it is given at the begin of each step."""
    memory: Any = torch.cuda.memory
    begins: list[int] = []
    memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=HISTORY)
    try:
        work(lambda: begins.append(len(_trace(memory._snapshot()))))
        torch.cuda.synchronize()
        snapshot = dict(memory._snapshot())
    finally:
        memory._record_memory_history(enabled=None)
    return {"trace": _trace(snapshot), "begins": begins}


def _trace(snapshot: Mapping[str, Any]) -> list[Any]:
    traces: list[list[Any]] = snapshot["device_traces"]
    return traces[torch.cuda.current_device()]


def cuda_events(history: Mapping[str, Any]) -> list[AllocatorEvent]:
    """Return the events of a `cuda_history` from its first step on.

    A release takes effect with `free_completed`. Its request comes earlier where another stream had recorded
    the block (torch.Tensor.record_stream). Names of actions: torch/cuda/_memory_viz.py.
    """
    events, requested_us = [], {}
    begins: Sequence[int] = history["begins"]
    for index, entry in enumerate(history["trace"]):
        step = sum(begin <= index for begin in begins) - 1
        address, size_B, stream = entry.get("addr"), entry["size"], entry.get("stream", 0)
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
