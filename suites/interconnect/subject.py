"""What a variant of the interconnect suite is: a training step behind a link."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suites.interconnect.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step, strategy_of

STRATEGIES: dict[str, str] = {"ddp": "ddp", "fsdp2": "fsdp2", "zero3": "zero"}
"""The technique behind each strategy."""

SHARED: Techniques = [{"attention": {"kernel": "flash"}}]
"""Techniques that plain PyTorch has too where a strategy is compared with it."""


def strategy_techniques(workload: Workload) -> Techniques:
    """Return the workload's strategy as a technique, its messages scaled to the model.

    torch's buckets of 25 MiB and deepspeed's of 500 million elements are parts of a model of billions of
    parameters, and all of one that two cores train; here a bucket is one block.
    """
    settings = {
        "ddp": {"buckets": workload.num_hidden_layers},
        "fsdp2": {"reduce_every_micro_batch": False},
        "zero3": {"stage": 3, "buckets": "block"},
    }[workload.strategy]
    return [{STRATEGIES[workload.strategy]: settings}]


def strategy_step(workload: Workload, seed: int) -> TrainingStep:
    """Return the training step of the workload's strategy, without any further technique."""
    return build_step(workload.training, [*SHARED, *strategy_techniques(workload)], seed)


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step and its link. `link_B_per_s` is at the scale of the paper's run."""

    workload: Workload
    seed: int
    step: TrainingStep
    link_B_per_s: float

    @property
    def strategy(self) -> str:
        """Return how ranks share the model: the workload's strategy, or what took its place."""
        technique = strategy_of(self.step)
        return self.step.features.sharding if technique == "zero" else str(technique)

    def with_step(self, step: TrainingStep) -> Subject:
        """Return the subject with another training step."""
        return replace(self, step=step)
