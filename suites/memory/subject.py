"""A variant of the memory suite, and readings of what could turn its answer and of what CUDA reserves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace

from harness.instruments.memory.caching_allocator import AllocatorSettings
from harness.records import Note, Origin, Reading
from suites.memory.workload import Search, Workload
from suites.training.dry_run import largest_batch
from suites.training.dry_run.dry_run import DryRun
from suites.training.dry_run.largest_batch import Target, fit_of, outside_allocator_B, under_other_choices
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


def readings(subject: Subject, largest: int, run_of: Callable[[Subject], DryRun]) -> Iterator[Reading]:
    """Yield, under each other choice, whether the requested micro-batch fits and the largest that does."""
    choices = under_other_choices(
        subject.step, subject.target, largest, lambda step: run_of(replace(subject, step=step))
    )
    for other in choices:
        name = f"assumption/{other.choice}"
        yield Reading(f"{name}/fits", "1", int(other.fits), Origin.SIMULATED, "fake_step")
        if largest:
            most = other.largest_micro_batch
            yield Reading(f"{name}/largest_micro_batch", "1", most, Origin.SIMULATED, "fake_step")


def room_B(subject: Subject) -> float:
    """Return what torch's allocator can reserve on one device at most; not above 0 where there is no room."""
    return largest_batch.room_B(subject.step, subject.usable_B)


def reserved(subject: Subject, run: DryRun) -> Iterator[Reading | Note]:
    """Return what a dry run of CUDA reserves, what lies outside of it, and whether a full device is slow."""
    if run.reserved_B is None:
        return
    yield Reading("reserved_memory", "B", run.reserved_B, Origin.SIMULATED, "fake_step")
    for name, size_B in outside_allocator_B(subject.step).items():
        yield Reading(f"outside_allocator/{name}", "B", size_B, Origin.CALCULATED, "fake_step")
    if retries := fit_of(subject.step, run, subject.target).retries:
        yield Note(
            f"fake_step: one rank fits, but slowly: the allocator would free cached blocks and retry "
            f"({retries} times in two steps)"
        )
