"""What a rank of the fsdp_versions suite does besides training: it follows the allocator step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.instruments.distributed.rank_worker import RankState
from harness.instruments.timing.device_telemetry import telemetry_of
from suites.fsdp_versions.allocator_events import (
    MARK,
    cpu_events,
    cpu_profile,
    cuda_events,
    cuda_history,
    summaries,
)
from suites.training.on_rank import device
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

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

    def work(begin_step: Any) -> None:
        for _ in range(steady):
            torch.cuda.reset_peak_memory_stats(device())
            before = torch.cuda.memory_stats(device())
            begin_step()
            trainer.train_step(trainer.text_batches())
            torch.cuda.synchronize(device())
            counted.append(since(before, torch.cuda.memory_stats(device())))

    found = summaries(cuda_events(cuda_history(work)))
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
