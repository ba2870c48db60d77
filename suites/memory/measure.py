"""Run a `TrainingStep` for real and read the allocator; every estimate is compared with it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch

from harness.instruments.memory.allocator import SpanPeak, watch
from harness.instruments.memory.bf16_products import fast_bf16_products
from suites.training.dry_run.dry_run import device_here
from suites.training.step import TrainingStep
from suites.training.trainer import Trainer


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

    Under `harness.instruments.distributed.fake_process_group` one process is one of `step.ranks`; its
    allocations are real.
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
    if products is None:
        return Measured(peaks, tuple(losses), in_fp32=False, slow=())
    return Measured(peaks, tuple(losses), in_fp32=bool(products.replaced), slow=tuple(sorted(products.slow)))


def losses(step: TrainingStep, steps: int = 3, device: torch.device | None = None) -> tuple[float, ...]:
    """Return the loss of each of `steps` real steps."""
    trainer = Trainer(step, device or device_here())
    return tuple(trainer.train_step().item() for _ in range(steps))
