"""Workloads of the suites about published values: a peak of memory, and sources of seconds per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from suites.training import workload as training
from suites.training.workload import Architecture

UNITS_B = {"GiB": 2.0**30, "GB": 1e9}

MEGATRONS = OnlyWith("program", ("megatron",))
"""Marks fields that the account of Megatron-LM's tensors alone reads."""

DEEPSPEEDS = OnlyWith("program", ("deepspeed",))
"""Marks fields that the account of DeepSpeed's host memory alone reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPublishedWorkload(training.Workload):
    """A published peak; its `model` is one of suites/published/models.py."""

    max_position_embeddings: PositiveInt  # the longest sequence
    micro_batch_size: PositiveInt  # sequences of one micro-batch on one rank
    optimizer: Literal["adamw", "sgd_momentum"] = "adamw"
    techniques: list[Any] = field(default_factory=list, hash=False)  # as an optimization's YAML lists them
    # megatron: by the account of its tensors; deepspeed: what it offloads, by that of its host memory
    program: Literal["torch", "megatron", "deepspeed"] = "torch"
    parameters: Annotated[PositiveInt, DEEPSPEEDS] | None = None  # of the model, whose shape is not read then
    zero_stage: Annotated[int, Bounds(at_least=2, at_most=3), DEEPSPEEDS] = 3
    offload: Annotated[Literal["optimizer", "parameters"], DEEPSPEEDS] = "optimizer"  # parameters: both
    nodes: Annotated[PositiveInt, DEEPSPEEDS] = 1
    pinned: Annotated[bool, DEEPSPEEDS] = False  # in blocks of torch's own, which rounds up since 1.11
    # after_parameters: what ZeRO-3's set-up adds after its bf16 partitions
    host_part: Annotated[Literal["all", "after_parameters"], DEEPSPEEDS] = "all"
    # As the next ones, an argument of Megatron-LM's.
    sequence_parallel: Annotated[bool, MEGATRONS] = False
    stages_per_rank: Annotated[PositiveInt, MEGATRONS] = 1  # more than 1: interleaved 1F1B
    distributed_optimizer: Annotated[bool, MEGATRONS] = False
    recompute: Annotated[Literal["none", "selective", "full"], MEGATRONS] = "none"
    # Of selective recompute; []: core_attn alone.
    recompute_modules: Annotated[list[Any], MEGATRONS] = field(default_factory=list, hash=False)
    # Layers of every pipeline stage, where they differ; []: equal parts.
    layers_of_stages: Annotated[list[Any], MEGATRONS] = field(default_factory=list, hash=False)
    dispatcher: Annotated[Literal["alltoall", "allgather", "deepep"], MEGATRONS] = "alltoall"
    grouped_experts: Annotated[bool, MEGATRONS] = True  # else one expert after another
    deterministic: Annotated[bool, MEGATRONS] = False
    # Tokens of the logged rank's experts over the mean, at the peak.
    imbalance: Annotated[float, Bounds(above=0), MEGATRONS] = 1.2
    attention: Annotated[Literal["fused", "flash", "unfused"], MEGATRONS] = "fused"
    expert_ranks: Annotated[PositiveInt, MEGATRONS] = 1  # that share the experts of a layer
    expert_tensor_ranks: Annotated[PositiveInt, MEGATRONS] | None = None  # of one expert; None: tp_size
    optimizer_instances: Annotated[PositiveInt, MEGATRONS] = 1  # copies of the sharded optimizer states
    precision: Annotated[Literal["bf16", "fp8"], MEGATRONS] = "bf16"
    fused_loss: Annotated[bool, MEGATRONS] = False
    # Fields of harness/instruments/transformer.py besides those above: experts, latent attention, ...
    shape_fields: Annotated[dict[str, Any] | None, MEGATRONS] = field(default=None, hash=False)
    # By CUBLAS_WORKSPACE_CONFIG, per handle; None: torch's default for the architecture.
    cublas_workspace_B: Annotated[PositiveInt, MEGATRONS] | None = None
    # As it was published, in `unit`; None: nothing was.
    published: Annotated[float, Bounds(above=0)] | None = None
    unit: Literal["GiB", "GB"] = "GB"
    kind: Literal["allocated", "active", "reserved", "host"] = "allocated"  # host: of a node
    gpu: str = ""
    architecture: Architecture  # of the simulated GPU
    expandable_segments: bool = False  # of PYTORCH_CUDA_ALLOC_CONF
    fsdp2_copies_on_own_stream: bool = False  # as torch until June 2024
    published_by: str = ""
    source: str = ""  # repository, commit, and the path or pull request

    @property
    def published_B(self) -> float | None:
        """Return the published peak in bytes; None where nothing was published."""
        return None if self.published is None else self.published * UNITS_B[self.unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeWorkload:
    """The sources whose steps are compared."""

    sources: list[Any]  # as `source` of a published step names them
    source: str = ""  # who published them, where


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Some of the published runs."""

    # One run of each source; or of a kind all others: see KINDS in suites/published/runs.py.
    kind: Literal[
        "sample",
        "dense",
        "experts",
        "hybrid",
        "fp8",
        "long_context",
        "full",
        "lora",
        "qlora",
        "post_training",
        "vision",
    ]
    parts: PositiveInt = 1  # into which they are dealt, one run after another
    part: Annotated[int, Bounds(at_least=1, not_above="parts")] = 1
    source: str = ""
