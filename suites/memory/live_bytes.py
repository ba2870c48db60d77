"""Live bytes over one training step: a few hundred points for a figure, and every event for a viewer.

Run a `TrainingStep` for real and read the allocator; every estimate is compared with it.
"""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.instruments.memory.allocator import SpanPeak, watch
from harness.instruments.memory.bf16_products import fast_bf16_products
from harness.instruments.memory.memory_timeline import KINDS, OpSite, Timeline
from suites.training.dry_run.dry_run import device_here
from suites.training.step import TrainingStep
from suites.training.trainer import Trainer

POINTS = 240
"""The points of a figure, as many as its width shows apart."""


class LiveBytes(NamedTuple):
    """Live bytes at each point by kind (in the order of `KINDS`), and where each phase begins.

    A point is the instant of most live bytes within its share of the step's allocations and releases, so
    that the peak is among them.
    """

    by_kind_B: tuple[tuple[int, ...], ...]
    phases: dict[str, int]


def live_bytes(timeline: Timeline, points: int = POINTS) -> LiveBytes:
    """Return the live bytes of the steady step, at no more than `points` points."""
    kinds = [KINDS.index(kind) for kind in timeline.kinds]
    live_B, count = [0] * len(KINDS), len(timeline.events) - timeline.since
    largest: dict[int, tuple[int, ...]] = {}
    phases: dict[str, int] = {}
    for index, (event, size_B) in enumerate(zip(timeline.events, timeline.sizes_B(), strict=True)):
        live_B[kinds[event.storage]] += size_B
        if index < timeline.since:
            continue
        point = (index - timeline.since) * min(points, count) // count
        phases.setdefault(event.place.phase, point)
        if point not in largest or sum(live_B) > sum(largest[point]):
            largest[point] = tuple(live_B)
    return LiveBytes(tuple(zip(*largest.values(), strict=True)), phases)


def write_snapshot(timeline: Timeline, path: Path) -> None:
    """Write the steady step as `torch.cuda.memory._dump_snapshot` does, for pytorch.org/memory_viz.

    Every storage has addresses of its own: where the allocator would place it is not simulated here.
    """
    sizes_B = [size_B for size_B in timeline.sizes_B() if size_B > 0]  # in the order of the storages' numbers
    starts = list(accumulate(sizes_B, initial=0))
    trace: list[dict[str, Any]] = []

    def enter(action: str, storage: int, place: OpSite) -> None:
        file, _, line = place.line.rpartition(":")
        frames = [{"name": f"{place.phase}: {place.operation}", "filename": file, "line": int(line or 0)}]
        block = {"action": action, "addr": starts[storage], "size": sizes_B[storage], "stream": 0}
        trace.append({**block, "frames": frames})

    for storage in sorted(live_before(timeline)):
        enter("alloc", storage, OpSite("before the step", timeline.kinds[storage], ()))
    for event in timeline.events[timeline.since :]:
        enter("alloc" if event.delta_B > 0 else "free_completed", event.storage, event.place)
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))


def live_before(timeline: Timeline) -> set[int]:
    """Return the storages that are live when the steady step begins."""
    live: set[int] = set()
    for event in timeline.events[: timeline.since]:
        (live.add if event.delta_B > 0 else live.discard)(event.storage)
    return live


class Measured(NamedTuple):
    """Real steps: one peak per steady step, and the loss of every step.

    `in_fp32`: whether bf16 products were computed in fp32, because this CPU is slow at them
    (`bf16_products`); `slow`: operations that could not be.
    """

    peaks: tuple[SpanPeak, ...]
    losses: tuple[float, ...]
    in_fp32: bool
    slow: tuple[str, ...]


def measure_peak(step: TrainingStep, device: torch.device | None = None, steady_steps: int = 2) -> Measured:
    """Return the peak bytes of `steady_steps` steps, counted from before the model is built.

    Steps before `step.settling_updates` lack states and are not sampled. Where ranks meet at intervals, the
    largest peak of one interval is returned alone: the meeting has tensors of its own.
    """
    device = device or device_here()
    losses = []
    narrow = fast_bf16_products() if device.type == "cpu" else nullcontext()
    with narrow as products, watch(device) as allocator:
        allocator.mark("build")
        trainer = Trainer(step, device)
        steps = steady_steps if step.updates_between_syncs == 1 else step.updates_between_syncs
        for index in range(step.settling_updates + steps):
            allocator.mark(f"step {index}")
            losses.append(trainer.train_step().item())
        del trainer
    peaks = tuple(allocator.peaks[1 + step.settling_updates :])
    if step.updates_between_syncs > 1:
        peaks = (max(peaks, key=lambda one: one.live_B),)
    replaced, slow = (
        (False, ()) if products is None else (bool(products.replaced), tuple(sorted(products.slow)))
    )
    return Measured(peaks, tuple(losses), replaced, slow)
