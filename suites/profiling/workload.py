"""Workloads of the profiling suites: a training step that is recorded, paced or sharded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training import workload as training
from suites.training.workload import TextVocabulary

if TYPE_CHECKING:
    from suites.training.techniques import Techniques


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.Workload):
    """A training step over ranks on one machine, recorded under torch's profiler.

    `suite.model` sets `model`, `suite.trace` the trace of a run elsewhere, which is read and not run.
    """

    vocab_size: TextVocabulary
    # Processes on this machine; a GPU each, if any.
    dp_size: Annotated[int, Bounds(at_least=1, at_most=8)] = 2
    parallelism: Literal["ddp", "fsdp2", "none"] = "ddp"  # how ranks share the model; none: one rank
    # Of each recording: one step with what is injected and one without; two steps before are left out.
    recorded_pairs: Annotated[int, Bounds(at_least=4)] = 14
    recordings: Annotated[int, Bounds(at_least=1)] = 1  # in each round
    linked: bool = False  # each rank in a network namespace of its own, over a link that can be shaped
    device: Literal["any", "cuda"] = "any"  # cuda: sized for a GPU, not run elsewhere
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: mixed
    # Of a device, from its datasheet; None: the CPU's, measured.
    peak_FLOP_per_s: Annotated[float, Bounds(above=0)] | None = None
    trace: str | None = None  # of a run elsewhere: a file, or a folder with one per rank
    source: str = ""

    @property
    def training(self) -> training.Workload:
        """Return the workload of `suites.training`."""
        return training.Workload.of({**asdict(self), "optimizer_impl": "fused"})

    @property
    def shared_techniques(self) -> Techniques:
        """Return the techniques that plain PyTorch has too where the step is compared with it."""
        mixed = ["mixed_precision"] if self.precision == "bf16" else []
        return [{"attention": {"kernel": "flash"}}, *mixed]

    @property
    def techniques(self) -> Techniques:
        """Return the techniques of the baseline.

        One bucket in DDP: nothing is reduced before the backward pass ends, so that communication is exposed.
        """
        own: dict[str, Techniques] = {
            "ddp": [{"ddp": {"buckets": 1, "gradient_as_bucket_view": True}}],
            "fsdp2": [{"fsdp2": {}}],
            "none": [],
        }
        return [*self.shared_techniques, *own[self.parallelism]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSpeedWorkload(training.StepWorkload):
    """A training step under DDP, whose ranks' speeds are imposed."""

    vocab_size: TextVocabulary
    dp_size: Annotated[int, Bounds(at_least=2)] = 4
    core_share: Annotated[float, Bounds(at_least=0.25, at_most=1)]  # of one core, at full speed
    slow: Annotated[float, Bounds(at_least=0.25, below=1)] = 0.8  # speed of a slow rank, full speed being 1
    quota_period_s: Annotated[float, Bounds(at_least=0.004, at_most=0.1)] = 0.005
    updates: PositiveInt = 24  # of a sample, at the imposed speeds
    reference_updates: PositiveInt = 8  # before them, at full speed
    source: str = ""

    @property
    def training(self) -> training.Workload:
        """Return the workload of `suites.training`."""
        return training.Workload.of(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpVersionsWorkload(training.StepWorkload):
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
