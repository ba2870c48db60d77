"""A workload of the profiling suite: a training step to record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from harness.bounds import Bounds
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
