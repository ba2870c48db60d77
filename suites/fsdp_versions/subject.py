"""The fsdp_versions suite's types: a workload, and a sharded training step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from harness.bounds import Bounds
from suites.training import workload as training
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, build_step, strategy_of
from suites.training.workload import TextVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.StepWorkload):
    """A training step that is sharded over ranks: trained here, or a dry run of one rank on CUDA."""

    vocab_size: TextVocabulary
    dp_size: Annotated[int, Bounds(at_least=2)]
    simulated: bool = False  # nothing is trained: a dry run of one rank, of a model too large for this host
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: FSDP's own mixed precision
    checkpointing: bool = False  # activation checkpointing of every layer
    source: str = ""

    @property
    def training(self) -> training.Workload:
        """Return the workload of `suites.training`."""
        implementation = "fused" if self.simulated else "default"
        return training.Workload.of({**asdict(self), "optimizer_impl": implementation})


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
