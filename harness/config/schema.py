"""The keys of conf/ and their types, for Hydra: a key that is not here is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

NOT_IN_YAML = {"yaml": False}  # metadata of a key that a YAML must not have


@dataclass
class LimitsSchema:
    """What one cell may take."""

    timeout_s: float = 600.0
    memory_B: float | None = None


@dataclass
class OptimizationSchema:
    """One optimization's YAML; see `harness.config.optimizations`."""

    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # fill the class `Settings` of its module
    techniques: list[Any] = field(default_factory=list)  # docs/extend/adding-a-technique.md
    applies_to: list[Any] = field(default_factory=list)  # for which workloads it is planned
    repeats: int | None = None  # fresh processes at most, where more would find the same
    variants: dict[str, Any] = field(default_factory=dict)  # each: settings, maybe title and techniques


@dataclass
class SamplingSchema:
    """How a timed suite samples: see `records.Sampling`."""

    rounds: int = 6
    target_ci_half_width: float = 0.01
    budget_s: float = 1.0


@dataclass
class SuiteSchema:
    """One suite's YAML; `fields`, those of its class Workload; and its optimizations' YAMLs."""

    package: str = ""  # of its code, which other suites share: suites/<package>/; "": the suite's own
    question: str = ""
    baseline_title: str = "Baseline"
    baseline_again: bool = False  # also where cells are not interleaved
    isolate_if: str = ""
    builds_first: bool = False  # cells compute nothing until sampled: an input that one refuses ends the run
    loads: list[str] = field(default_factory=list)  # paths, see `harness.sweep.sweep.loaded_digest`
    interleave: bool = False
    rounds_field: str = ""  # of suites timed together: the field that says how many rounds
    repeats: int = 1
    usual_cell_s: float = 5.0  # per cell, where no record of an earlier run says more
    sampling: SamplingSchema = field(default_factory=SamplingSchema)
    size_fields: list[str] = field(default_factory=list)
    reference_workloads: dict[str, Any] = field(default_factory=dict)  # and which need it
    applies_to: list[Any] = field(default_factory=list)  # which workloads are planned
    takes_techniques: bool = False  # its suite.py has apply_techniques
    bf16_products: bool = False  # its suite.py has bf16_FLOP
    techniques_apply_to: list[Any] = field(default_factory=list)  # an optimization of techniques alone
    parallel: bool = False  # nothing is timed: cells may run at once, by default one per core
    quick: dict[str, Any] = field(default_factory=dict)  # what selection=quick runs: harness.config.run
    workload_from: str | None = None
    workload_from_suite: str = ""  # another suite, which answers where a command has suite.workload_from
    model: str | None = None  # package.module:function, the code of every workload's model
    hf_defaults: dict[str, Any] = field(default_factory=dict)
    trace: str | None = None  # a trace of torch.profiler, or a folder of ranks: harness.config.workloads
    trace_defaults: dict[str, Any] = field(default_factory=dict)  # fields of its workload
    usual_seq_len: int = 2048  # of a config.json's workload, where the model has as many positions
    fields: dict[str, Any] = field(default_factory=dict, metadata=NOT_IN_YAML)  # of its Workload
    workloads: dict[str, Any] = field(default_factory=dict)
    rows: str = ""  # a jsonl in place of `workloads`: a row each, its field `row`
    workload_defaults: dict[str, Any] = field(default_factory=dict)  # fields of each, unless it states them
    tiny: dict[str, Any] = field(default_factory=dict)  # workload: fields; tests try every optimization on it
    slow_bf16_workloads: dict[str, Any] = field(default_factory=dict)  # see harness.sweep.preflight
    optimizations: dict[str, OptimizationSchema] = field(default_factory=dict, metadata=NOT_IN_YAML)


@dataclass
class HardwareSchema:
    """One device's datasheet."""

    name: str = MISSING
    memory_B: float = MISSING
    usable_memory_B: float | None = None  # of it, what a process can use, as the driver reports it
    architecture: str = ""  # of a GPU: see suites.training.workload.Architecture
    device: str = ""  # a pattern of the name that the driver reports
    matmul_FLOP_per_s: dict[str, float] = field(default_factory=dict)  # dense, by precision
    memory_bandwidth_B_per_s: float | None = None
    link_B_per_s: float | None = None  # to its peers in a node, each way
    link_domain: int | None = None  # GPUs that this link connects, where they are not those of a node
    processors: int | None = None  # streaming multiprocessors
    power_share: float | None = None  # power limit over that of the GPU whose matmuls were measured
    variants: dict[str, Any] = field(default_factory=dict)  # its other names, with what differs
    source: str = MISSING


@dataclass
class ExecutorSchema:
    """Where children run: conf/executor/<executor>.yaml names the module of harness/sweep/executors/."""

    workers: int | None = None  # None: as many as this machine has cores and memory for


@dataclass
class SlurmSchema(ExecutorSchema):
    """conf/executor/slurm.yaml, where each key is explained; `workers` are jobs in the queue at once."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    memory_GB: float | None = None
    time_limit_min: int = 60
    exclusive: bool | None = None
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    srun_args: list[str] = field(default_factory=list)
    groups_per_job: int = 1
    array_parallelism: int | None = None


@dataclass
class RaySchema(ExecutorSchema):
    """conf/executor/ray.yaml, where each key is explained; `workers` are jobs in Ray's queue at once."""

    address: str | None = None
    cpus_per_job: int = 1
    gpus_per_job: int = 0
    exclusive: bool | None = None
    groups_per_job: int = 1


EXECUTORS: dict[str, type[ExecutorSchema]] = {"slurm": SlurmSchema, "ray": RaySchema}
"""Executors with keys of their own."""


@dataclass
class RunSchema:
    """conf/config.yaml."""

    suite: SuiteSchema = field(default_factory=SuiteSchema)
    executor: ExecutorSchema = field(default_factory=ExecutorSchema)
    hardware: HardwareSchema = field(default_factory=HardwareSchema)
    only: list[str] = field(default_factory=list)
    techniques: list[Any] = field(default_factory=list)  # one more variant: harness.config.techniques
    workloads: list[str] = field(default_factory=list)
    selection: str = "full"
    retry: list[str] = field(default_factory=list)
    repeats: int | None = None
    seed: int = 0
    out: str | None = None
    plan: bool = False
    show: str = "answer"
    limits: LimitsSchema = field(default_factory=LimitsSchema)
