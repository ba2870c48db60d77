"""The functions that a rank runs for any suite that trains, called by name through `distributed.rank_pool`.

A suite's own `on_rank.py` adds what it measures: `state[key]` is the `Trainer` that `make` stored.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import use_ring_reduce_scatter
from harness.instruments.distributed.rank_worker import RankState, gpu
from harness.instruments.memory.allocator import watch
from suites.training.correctness import accumulate, badness, plain_gradients, text_updates
from suites.training.correctness import worst_gradient as worst_of
from suites.training.ranks.drain_gloo import DrainGloo, wait_for_threads
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

SETTLING, STEADY = 2, 3
"""Updates before a rank's memory is steady: the first creates states, the second is the first with them. Then
those whose peak counts."""


def device() -> torch.device:
    """Return this rank's GPU where ranks meet by NCCL, else the CPU."""
    return gpu() if dist.get_backend() == "nccl" else torch.device("cpu")


def use_ring(state: RankState) -> None:
    """Reduce to shares by the bytes of NCCL's ring where the ranks meet by gloo."""
    use_ring_reduce_scatter()


def make(state: RankState, key: str, step: Mapping[str, Any], folder: str = "") -> None:
    """Keep a trainer of the described step under `key`."""
    if device().type == "cuda":
        torch.cuda.set_device(device())
    state[key] = Trainer(build_step(**step), device(), folder=folder)


def drop(state: RankState, key: str) -> None:
    """Release the trainer."""
    trainer = state.pop(key, None)
    if trainer is not None:
        trainer.close()


def updates(state: RankState, key: str, count: int) -> dict[str, list[float]]:
    """Run updates on text and return the loss and the seconds of each, without making its batches."""
    trainer: Trainer = state[key]
    losses, times_s = [], []
    for _ in range(count):
        batches = trainer.text_batches()
        dist.barrier()
        begin_s = time.perf_counter()
        loss = float(trainer.train_step(batches))
        if device().type == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin_s)
        losses.append(loss)
    return {"loss": losses, "seconds": times_s}


def peak_memory(state: RankState, step: Mapping[str, Any]) -> int:
    """Return the peak live bytes of steady updates on this rank's device, by the allocator's events.

    The trainer is a new one: on the CPU only tensors made meanwhile are counted. Where ranks synchronize
    after some updates, as many more are run.
    """
    on_cpu = device().type == "cpu"
    gc.collect()
    before_B = 0 if on_cpu else torch.cuda.memory_allocated(device())
    drained = DrainGloo() if on_cpu else nullcontext()
    with drained, watch(device()) as watched:
        trainer = Trainer(build_step(**step), device())
        for update in range(SETTLING + STEADY + trainer.step.updates_between_syncs - 1):
            watched.mark(f"update {update}")
            trainer.train_step(trainer.text_batches())
            if on_cpu:
                wait_for_threads()  # DDP's collectives start where no mode sees them
    trainer.close()
    return max(peak.live_B for peak in watched.peaks[SETTLING:]) - before_B


def worst_gradient(state: RankState, key: str, shared: Sequence[Any] = ()) -> tuple[float, str]:
    """Return which of a new trainer's first gradients is off plain PyTorch's the most, and how far.

    Plain PyTorch: one model with the techniques `shared`, on this rank, takes the batches of all ranks.
    """
    trainer: Trainer = state[key]
    accumulate(trainer, trainer.text_batches())
    ours = trainer.gradients()
    batches = next(text_updates(trainer.step, 1))
    return worst_of(ours, plain_gradients(trainer.step, batches, shared, trainer.device))


def spread(state: RankState, key: str) -> float:
    """Return by how much parameters differ between ranks at most, relative to the largest parameter."""
    worst = 0.0
    for parameter in state[key].parameters().values():
        low, high = (parameter.to(device(), copy=True) for _ in range(2))  # NCCL sends no host memory
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        off = float((high - low).abs().max() / high.abs().max().clamp_min(1e-12))
        worst = max(worst, off, key=badness)
    return worst
