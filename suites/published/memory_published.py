"""The memory_published suite: does the dry run predict peaks that others measured on GPUs?

Each workload is one published peak with the training step that had it. A subject is the description of that
step, or the reason why it cannot be described here. Megatron-LM's peaks are those of the rank that was
logged, by the account. Of offloading by DeepSpeed, what is published is host memory per node, which the
account of its buffers predicts. A note has the command by which a user asks the memory suite for the step of
a peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from harness.instruments.memory.caching_allocator import AllocatorSettings
from harness.instruments.transformer import TransformerShape
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.published.workload import MemoryPublishedWorkload
from suites.training import correctness, techniques
from suites.training import workload as training
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.estimates import count, estimator
from suites.training.layouts.account import LayoutPeak, peak_of_rank, worst_peak
from suites.training.layouts.layout import DEFAULT_MODULES, RECOMPUTES, Layouts, Training
from suites.training.layouts.room import CUBLAS_HANDLES, cublas_workspace_B
from suites.training.layouts.search import refusal, refusal_of_training
from suites.training.layouts.states import deepspeed_host_B
from suites.training.step import TrainingStep
from suites.training.trainer import build_model

FIXED: dict[str, Any] = {
    "optimizer": "adamw",
    "techniques": [],
    "model": None,
    "hf_config": None,
    "kind": "allocated",
    "expandable_segments": False,
}
"""Fields of a workload of which the account has one value."""


class MegatronPeak(NamedTuple):
    """Bytes of one rank at its peak, by part. `stage`: of the pipeline's ranks."""

    stage: int
    states: float
    activations: float
    logits: float
    communication: float
    workspaces: float

    @property
    def total_B(self) -> float:
        """Return all of them."""
        return self.states + self.activations + self.logits + self.communication + self.workspaces


def published_peak(workload: MemoryPublishedWorkload) -> MegatronPeak:
    """Return the peak of the stage that takes the most; of a published peak, that of the last rank.

    The last rank writes Megatron-LM's log (training/global_vars.py). Raises `Unavailable` for a layout or a
    field that the account does not cover.
    """
    given = [name for name, value in FIXED.items() if getattr(workload, name) != value]
    if given:
        name = given[0]
        raise Unavailable(
            f"{name}={getattr(workload, name)!r}: the account of Megatron-LM is for {FIXED[name]!r} alone"
        )
    shape, layout, training = shape_of(workload), layout_of(workload), training_of(workload)
    if reason := refusal_of_training(shape, training) or refusal(shape, layout, training):
        raise Unavailable(reason)
    if workload.published is None:
        peak = worst_peak(shape, layout, training, workload.architecture)
    else:
        peak = peak_of_rank(shape, layout, training, layout.pp - 1, workload.architecture)
    return with_workspaces(peak, workload)


def with_workspaces(peak: LayoutPeak, workload: MemoryPublishedWorkload) -> MegatronPeak:
    """Return the peak of one layout with the workspaces that its environment asked for."""
    of = MegatronPeak(*(getattr(peak, name)[0].item() for name in MegatronPeak._fields))
    if workload.cublas_workspace_B is None:
        return of
    usual_B = cublas_workspace_B(training_of(workload), workload.architecture)
    more_B = CUBLAS_HANDLES * (workload.cublas_workspace_B - usual_B)
    return of._replace(workspaces=of.workspaces + more_B)


BIASES = ("qkv_bias", "attention_output_bias", "mlp_bias", "expert_bias")


def shape_of(workload: MemoryPublishedWorkload) -> TransformerShape:
    """Return the model's shape; `shape_fields` are added to those that all workloads have."""
    learned = workload.position == "learned"
    given: dict[str, Any] = {
        "num_hidden_layers": workload.num_hidden_layers,
        "hidden_size": workload.hidden_size,
        "num_attention_heads": workload.num_attention_heads,
        "num_key_value_heads": workload.num_key_value_heads,
        "head_dim": workload.hidden_size // workload.num_attention_heads,
        "intermediate_size": workload.intermediate_size,
        "vocab_size": workload.vocab_size,
        "gated": workload.mlp == "swiglu",
        "layer_norm": workload.norm == "layer",
        **dict.fromkeys(BIASES, workload.bias),
        "tie_word_embeddings": workload.tie_word_embeddings,
        "learned_positions": (workload.max_position_embeddings or workload.seq_len) if learned else 0,
        "dropout": workload.dropout,
    }
    fields = {**given, **(workload.shape_fields or {})}
    if isinstance(fields.get("moe_layers"), list):
        fields["moe_layers"] = tuple(map(bool, fields["moe_layers"]))
    return TransformerShape(**fields)


def layout_of(workload: MemoryPublishedWorkload) -> Layouts:
    """Return the layout, as arrays with one entry."""
    dp = workload.dp_size
    return Layouts.of(
        [
            {
                "dp": dp,
                "tp": workload.tp_size,
                "pp": workload.pp_size,
                "cp": workload.cp_size,
                "ep": workload.expert_ranks,
                "etp": workload.expert_tensor_ranks or workload.tp_size,
                "virtual_stages": workload.stages_per_rank,
                "zero": int(workload.distributed_optimizer),
                "shard_size": dp * workload.cp_size // workload.optimizer_instances,
                "micro_batch_size": workload.micro_batch_size,
                "micro_batches": workload.gradient_accumulation_steps,
                "recompute": RECOMPUTES.index(workload.recompute),
                "sequence_parallel": int(workload.sequence_parallel),
            }
        ]
    )


def training_of(workload: MemoryPublishedWorkload) -> Training:
    """Return what the layout's step is besides."""
    return Training(
        seq_len=workload.seq_len,
        program="megatron",
        precision=workload.precision,
        attention=workload.attention,
        fused_loss=workload.fused_loss,
        recompute_modules=tuple(workload.recompute_modules) or DEFAULT_MODULES,
        layers_of_stages=tuple(workload.layers_of_stages),
        dispatcher=workload.dispatcher,
        grouped_experts=workload.grouped_experts,
        deterministic=workload.deterministic,
        imbalance=workload.imbalance,
    )


NAME = "published"
"""Name of the workload that the command adds."""


def command_of(workload: MemoryPublishedWorkload) -> str:
    """Return one line for a shell; what is not in it has the memory suite's default.

    The accounts of Megatron-LM and DeepSpeed are of this suite, which gets the same layout without a
    published peak.
    """
    if workload.program != "torch":
        layout = {
            one.name: value
            for one in fields(MemoryPublishedWorkload)
            if one.name not in PUBLISHED and (value := getattr(workload, one.name)) not in (one.default, [])
        }
        return (
            f"python -m harness suite=memory_published workloads=[{NAME}] "
            f"'+suite.workloads.{NAME}={word(layout)}'"
        )
    given: dict[str, Any] = {
        one.name: value
        for one in fields(training.Workload)
        if (value := getattr(workload, one.name)) != one.default or one.name in KEPT
    }
    given |= {name: getattr(workload, name) for name in OF_THE_DEVICE}
    given |= {"device_memory_B": "${hardware.memory_B}", "simulated_device": "cuda"}
    listed = f" 'techniques={word(workload.techniques)}'" if workload.techniques else " only=[baseline]"
    return (
        f"python -m harness suite=memory workloads=[{NAME}] '+suite.workloads.{NAME}={word(given)}'{listed}"
    )


PUBLISHED = ("techniques", "published", "unit", "kind", "gpu", "published_by", "source")
"""Fields of a published peak that are no part of a layout."""

KEPT = ("dp_size", "tp_size")
"""Fields whose default in the memory suite is another."""

OF_THE_DEVICE = ("architecture", "expandable_segments", "fsdp2_copies_on_own_stream")
"""Fields that decide what the simulated GPU allocates and reserves."""


def word(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {word(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(word, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


@dataclass(frozen=True, slots=True)
class Subject:
    """A published peak and its step. `missing`: why there is none, where torch has one."""

    workload: MemoryPublishedWorkload
    step: TrainingStep | None
    missing: str = ""


def subject_of(workload: MemoryPublishedWorkload, seed: int) -> Subject:
    """Return the step of a published peak, or the first technique of its list that is not built."""
    if workload.program != "torch":
        return Subject(workload, None)
    if reason := not_built(workload.techniques):
        return Subject(workload, None, reason)
    try:
        return Subject(workload, techniques.build_step(asdict(workload), workload.techniques, seed))
    except Unavailable as reason_of_step:
        return Subject(workload, None, str(reason_of_step))


def not_built(listed: Sequence[Any]) -> str:
    """Return which technique or setting of a list does not exist yet; "" where all do."""
    for name, settings in techniques.named(listed):
        if name not in techniques.names():
            return f"the technique {name} is not built"
        try:
            techniques.settings_of(name, settings)
        except ValueError as error:
            return f"not built: {error}"
    return ""


METRIC, ERROR = "host_memory", "host_memory/relative_error"
"""Apart from those of GPUs, since reports of host memory also have the process and its libraries."""

AFTER_PARAMETERS_B = 16
"""Per parameter of what stage 3 makes from creating fp32 partitions to initializing optimizer states: fp32
weights and gradients, and Adam's moments (deepspeed/runtime/zero/stage3.py, _setup_for_real_optimizer)."""


def node_B(workload: MemoryPublishedWorkload) -> float:
    """Return the bytes that all ranks of one node have on their host, or made in the reported part of it."""
    assert workload.parameters is not None
    ranks = workload.dp_size * workload.tp_size
    part = np.array([workload.parameters / ranks])
    if workload.host_part == "after_parameters":
        return float(AFTER_PARAMETERS_B * part[0] * ranks / workload.nodes)
    found = deepspeed_host_B(part, np.array([workload.zero_stage]), workload.offload == "parameters")
    of_rank = found.reserved if workload.pinned else found.asked
    return float(of_rank[0] * ranks / workload.nodes)


def estimated_node_B(workload: MemoryPublishedWorkload) -> float:
    """Return what deepspeed's own estimator says for a node; raises ImportError without deepspeed."""
    ranks = workload.dp_size * workload.tp_size // workload.nodes
    if workload.zero_stage == 2:
        return float(estimator(2)(workload.parameters, ranks, workload.nodes, cpu_offload=True)[0])
    with_parameters = workload.offload == "parameters"
    of_node = estimator(3)(
        workload.parameters, 0, ranks, workload.nodes, cpu_offload=True, cpu_offload_params=with_parameters
    )
    return float(of_node[0])


def readings(workload: MemoryPublishedWorkload) -> Iterator[Reading | Note]:
    """Return a node's host memory as reported, by the account, and by deepspeed's estimator."""
    published_B = workload.published_B
    if published_B is not None:
        yield Reading(METRIC, "B", published_B, Origin.PUBLISHED, "published")
    predicted = {"account": node_B(workload)}
    if workload.host_part == "all":
        try:
            predicted["deepspeed_estimator"] = estimated_node_B(workload)
        except ImportError:
            yield Note("deepspeed_estimator: deepspeed is not installed")
    for method, size_B in predicted.items():
        yield Reading(METRIC, "B", size_B, Origin.CALCULATED, method)
        if published_B is not None:
            yield Reading(ERROR, "1", size_B / published_B - 1, Origin.CALCULATED, method)


def build(workload: Json, seed: int) -> Subject:
    """Return the published step, or why it cannot be described."""
    return subject_of(MemoryPublishedWorkload(**workload), seed)


def check(subject: Subject) -> None:
    """Compare the step's losses with plain PyTorch's; raises `WrongResult`."""
    if subject.step is not None:
        correctness.check_as_traced(subject.step)


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return who published the peak, of what, on which GPU, and the command that asks for it."""
    workload, step = subject.workload, subject.step
    return {
        "published_by": workload.published_by,
        "kind": workload.kind,
        "gpu": workload.gpu,
        "source": workload.source,
        "command": command_of(workload),
        "model_code": "" if step is None else step.features.model_code,
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return the published peak, the predicted one, and the relative error.

    Active bytes are compared with allocated ones; they also count freed blocks that another stream uses.
    Raises `Unavailable` where the step cannot be simulated.
    """
    if subject.workload.program == "deepspeed":
        yield from readings(subject.workload)
        return
    published_B = subject.workload.published_B
    if published_B is not None:
        yield Reading("peak_memory", "B", published_B, Origin.PUBLISHED, "published")
        if subject.step is not None:
            yield from of_all_ranks(subject.step, published_B)
    if subject.missing:
        raise Unavailable(subject.missing)
    for reading in by_formula(subject) if subject.step is None else simulated(subject, subject.step):
        yield reading
        if isinstance(reading, Reading) and reading.metric == "peak_memory" and published_B is not None:
            error = reading.value / published_B - 1
            yield Reading("relative_error", "1", error, Origin.CALCULATED, reading.method)


def of_all_ranks(step: TrainingStep, published_B: float) -> Iterator[Reading]:
    """Return the published peak of one rank times the ranks, in total and per parameter of the model."""
    with torch.device("meta"):
        parameters = count(build_model(step), step.workload).parameters
    total_B = published_B * step.ranks
    yield Reading("parameters", "1", parameters, Origin.CALCULATED)
    yield Reading("peak_memory/all_ranks", "B", total_B, Origin.PUBLISHED, "published")
    yield Reading("bytes_per_parameter", "B", total_B / parameters, Origin.PUBLISHED, "published")


def simulated(subject: Subject, step: TrainingStep) -> Iterator[Reading | Note]:
    """Return the peak of the step's dry run, of the kind that was published."""
    workload = subject.workload
    allocator = AllocatorSettings(expandable_segments=workload.expandable_segments)
    device = Device(
        "cuda",
        architecture=workload.architecture,
        allocator=allocator,
        fsdp2_copies_on_own_stream=workload.fsdp2_copies_on_own_stream,
    )
    run = dry_run(step, device)
    yield Note(f"fake_step: the peak is in {run.place.phase!r}, at {run.place.operation or 'its start'}")
    peak_B = run.reserved_B if workload.kind == "reserved" else run.allocated_B
    assert peak_B is not None  # on CUDA
    yield Reading("peak_memory", "B", peak_B, Origin.SIMULATED, "fake_step")


def by_formula(subject: Subject) -> Iterator[Reading | Note]:
    """Return the peak of Megatron-LM by the tensors that it keeps, in total and by part."""
    peak = published_peak(subject.workload)
    yield Note(f"megatron: of a rank of stage {peak.stage + 1} of {subject.workload.pp_size}")
    yield Reading("peak_memory", "B", peak.total_B, Origin.CALCULATED, "megatron")
    for part in ("states", "activations", "logits", "communication", "workspaces"):
        yield Reading(f"peak_memory/{part}", "B", getattr(peak, part), Origin.CALCULATED, "megatron")


def close(subject: Subject) -> None:
    """Do nothing: a description allocates nothing."""
