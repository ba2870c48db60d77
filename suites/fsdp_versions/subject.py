"""What a variant of the fsdp_versions suite is: a sharded training step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suites.fsdp_versions.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step, strategy_of


def shared_techniques(workload: Workload) -> Techniques:
    """Return the techniques that plain PyTorch has too where a variant is compared with it."""
    chosen: list[str | dict[str, dict[str, str]]] = [{"attention": {"kernel": "flash"}}]
    if workload.precision == "bf16":
        chosen.append("mixed_precision")
    if workload.checkpointing:
        chosen.append("activation_checkpointing")
    return chosen


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step under FSDP1 or FSDP2."""

    workload: Workload
    step: TrainingStep

    @property
    def version(self) -> str:
        """Return "fsdp1" or "fsdp2"."""
        return str(strategy_of(self.step))

    def with_step(self, step: TrainingStep) -> Subject:
        """Return the subject with another training step."""
        return replace(self, step=step)


def baseline(workload: Workload, seed: int) -> Subject:
    """Return the step under FSDP1, whose units are the layers."""
    techniques = [*shared_techniques(workload), "fsdp1"]
    return Subject(workload, build_step(workload.training, techniques, seed))
