"""What a variant of the stack suite is: how one variant trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import torch

from harness.records import Unavailable
from suites.stack.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step


@dataclass(frozen=True, slots=True)
class Subject:
    """How one variant trains.

    - `techniques`: of the training layer.
    - `loads_ahead`: another process makes the next batch during the step.
    - `fills_memory`: the micro-batch is the largest whose peak memory is not above the baseline's.
    - `whole()`: the context of all passes of an update, such as TF32; `products`: the precision of products
      outside of autocast; `tolerance`: what that precision adds to a loss's, as a share of the first loss.
    """

    workload: Workload
    seed: int
    device: torch.device
    techniques: Techniques = ()
    loads_ahead: bool = False
    fills_memory: bool = False
    whole: Callable[[], AbstractContextManager[None]] = nullcontext
    products: str = "fp32"
    tolerance: float = 0.0

    @property
    def precision(self) -> str:
        """Return the precision of the step's matrix products: fp32, tf32 or bf16."""
        return self.products if self.step_of(1).features.precision == "fp32" else "bf16"

    def step_of(self, times: int) -> TrainingStep:
        """Return the step whose micro-batches have `times` as many sequences, and are as many times fewer."""
        given = self.workload
        if given.gradient_accumulation_steps % times:
            raise ValueError(f"{given.gradient_accumulation_steps} micro-batches are no multiple of {times}")
        changed = {
            "micro_batch_size": given.micro_batch_size * times,
            "gradient_accumulation_steps": given.gradient_accumulation_steps // times,
        }
        step = build_step({**asdict(given), **changed}, self.techniques, self.seed)
        if step.ranks > 1 or step.features.sharding != "none" or step.batches_per_update > 1:
            raise Unavailable("this suite's steps run in one process, on the same sequences in every variant")
        return step

    @property
    def sizes(self) -> list[int]:
        """Return by what the micro-batch may grow: the powers of two that divide the micro-batches."""
        count = self.workload.gradient_accumulation_steps
        return [2**power for power in range(count.bit_length()) if count % 2**power == 0]
