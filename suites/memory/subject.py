"""The memory suite's types: a training step and its workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from harness.instruments.memory.caching_allocator import AllocatorSettings
from suites.training import workload as training
from suites.training.dry_run.simulated_cuda import Architecture
from suites.training.step import TrainingStep
from suites.training.techniques import build_step

Search = Literal["thresholds", "largest_micro_batch", "fits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.Workload):
    """A point at which memory is measured.

    `suite.workload_from` sets `hf_config`, `suite.model` the `model` of all workloads.
    """

    max_position_embeddings: PositiveInt  # the longest sequence
    dp_size: PositiveInt = 8  # data-parallel ranks
    tp_size: PositiveInt = 8  # tensor-parallel ranks: at most the heads, within a node as a rule
    optimizer: Literal["adamw", "sgd_momentum"] = "adamw"  # techniques have others
    # Of one device by its name, for the formulas' counts of devices.
    device_memory_B: Annotated[float, Bounds(at_least=1)]
    # Of `device_memory_B`, what a process can use; None: all.
    usable_memory_B: Annotated[float, Bounds(at_least=1)] | None = None
    architecture: Architecture = "hopper"  # of CUDA's simulated device
    expandable_segments: bool = False  # as the next two, an option of PYTORCH_CUDA_ALLOC_CONF
    max_split_size_mb: Annotated[int, Bounds(at_least=21)] | None = None
    roundup_power2_divisions: Literal[1, 2, 4, 8, 16, 32, 64] | None = None
    fsdp2_copies_on_own_stream: bool = False  # as torch until June 2024, on CUDA's simulated device
    # The paper's "7B"; None: the real count.
    nominal_parameters: Annotated[float, Bounds(at_least=1)] | None = None
    measurable: bool = False  # small enough to be trained here
    simulated_device: Literal["host", "cuda"] = "host"  # whose operations the dry run simulates
    timeline: bool = False  # record live bytes over the step, for a figure
    snapshot: str | None = None  # a folder: write each step there for pytorch.org/memory_viz
    # What is searched by further dry runs: the fewest ranks and the most tokens; or the largest micro-batch
    # that fits the device; "fits": nothing, only whether the step fits.
    search: Search = "thresholds"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A step with the fields of its workload that do not concern training, see `Workload`."""

    step: TrainingStep
    device_memory_B: float
    nominal_parameters: float | None = None
    measurable: bool = False
    simulated_device: str = "host"
    timeline: bool = False
    snapshot: str | None = None
    search: Search = "thresholds"
    usable_memory_B: float | None = None
    architecture: Architecture = "hopper"
    expandable_segments: bool = False
    max_split_size_mb: int | None = None
    roundup_power2_divisions: int | None = None
    fsdp2_copies_on_own_stream: bool = False

    @property
    def allocator(self) -> AllocatorSettings:
        """Return the options of CUDA's caching allocator."""
        return AllocatorSettings(
            self.expandable_segments, self.max_split_size_mb, self.roundup_power2_divisions
        )

    @property
    def usable_B(self) -> float:
        """Return the bytes of a device that a process can use."""
        return self.device_memory_B if self.usable_memory_B is None else self.usable_memory_B


def subject_of(workload: Workload, seed: int) -> Subject:
    """Return the plain step of a workload."""
    own = [one.name for one in fields(Subject) if one.name != "step"]
    step = build_step(asdict(workload), (), seed)
    return Subject(step, **{name: getattr(workload, name) for name in own})
