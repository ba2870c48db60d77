"""Workloads of the offload suites: a training step over ranks, and one update on the host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from suites.training import workload as training
from suites.training.workload import TextVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.StepWorkload):
    """A training step over ranks on one machine.

    With `device_memory_budget_B` its layers are searched: as many as train in that many bytes per rank, at
    most `num_hidden_layers`.
    """

    vocab_size: TextVocabulary
    precision: Literal["bf16", "fp32"] = "bf16"  # bf16: mixed
    dp_size: PositiveInt = 2  # processes on this machine; on GPUs, one each
    # A search for the largest model has no loss curve.
    loss_steps: Annotated[int, Bounds(at_least=8), OnlyWith("device_memory_budget_B", (None,))] = 24
    offload_dir: str = ""  # of files that represent host or disk; "": the system's for temporary files
    # Per rank: find the largest model.
    device_memory_budget_B: Annotated[float, Bounds(at_least=1)] | None = None
    device: Literal["any", "cuda"] = "any"  # cuda: sized for a GPU, not run elsewhere
    recompute: bool = False  # recompute activations, in variants that do not decide it
    source: str = ""

    @property
    def needs_gpu(self) -> bool:
        """Return whether the model's size is chosen for a GPU."""
        return self.device == "cuda"

    @property
    def training(self) -> training.Workload:
        """Return the workload of `suites.training`.

        AdamW is torch's fused one, which needs no temporaries.
        """
        return training.Workload.of({**asdict(self), "optimizer_impl": "fused"})


@dataclass(frozen=True, slots=True)
class HostOptimizerWorkload:
    """One update."""

    # In fp32, as are gradients and states: 16 B each.
    parameters: Annotated[int, Bounds(at_least=1, multiple_of="tensors")]
    tensors: PositiveInt = 1  # number of tensors of equal size; ZeRO keeps the parameters as one flat tensor
    source: str = ""
