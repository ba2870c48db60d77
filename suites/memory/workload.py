"""A workload of the memory suite: a training step on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training import workload as training
from suites.training.workload import Architecture

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
