"""The memory suite's types: a training step and its workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from harness.instruments.memory.caching_allocator import AllocatorSettings
from suites.training import workload as training
from suites.training.step import TrainingStep
from suites.training.techniques import build_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.Workload):
    """A point at which memory is measured; the fields of `conf/suite/memory.yaml`."""

    max_position_embeddings: int
    dp_size: int = 8  # data-parallel ranks
    tp_size: int = 8  # over which tensor parallelism does: at most its heads, within a node as a rule
    device_memory_B: float  # of one device by its name, for the formulas' counts of devices
    usable_memory_B: float | None = None  # of it, what a process can use; None: all
    architecture: str = "hopper"  # of CUDA's simulated device
    expandable_segments: bool = False  # options of CUDA's caching allocator
    max_split_size_mb: int | None = None
    roundup_power2_divisions: int | None = None
    nominal_parameters: float | None = None  # the paper's "7B"; None: the real count
    measurable: bool = False  # small enough to be trained here
    simulated_device: str = "host"  # host | cuda: whose operations the dry run takes
    timeline: bool = False  # record live bytes over the step
    snapshot: str | None = None  # a folder: write each step there for pytorch.org/memory_viz
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
    usable_memory_B: float | None = None
    architecture: str = "hopper"
    expandable_segments: bool = False
    max_split_size_mb: int | None = None
    roundup_power2_divisions: int | None = None

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
