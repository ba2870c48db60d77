"""What a variant of the memory suite is: a training step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from harness.instruments.memory.caching_allocator import AllocatorSettings
from suites.memory.workload import Search, Workload
from suites.training.dry_run.largest_batch import Target
from suites.training.step import TrainingStep
from suites.training.techniques import build_step
from suites.training.workload import Architecture


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

    @property
    def target(self) -> Target:
        """Return the device that the step must fit."""
        return Target(self.usable_B, self.allocator)


def subject_of(workload: Workload, seed: int) -> Subject:
    """Return the plain step of a workload."""
    own = [one.name for one in fields(Subject) if one.name != "step"]
    step = build_step(asdict(workload), (), seed)
    return Subject(step, **{name: getattr(workload, name) for name in own})
