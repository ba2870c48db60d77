"""A workload of the fsdp_versions suite: a sharded training step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds
from suites.training import workload as training
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
