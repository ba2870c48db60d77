"""The step_gains suite's types: one training step at scale, and its question to the model of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable
from suites.training.layouts.divide import refusal
from suites.training.step_time.questions.reader import AskedStep, asked_step, why_not_known
from suites.training.step_time.rates.constants import StepConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step."""

    sizes: dict[str, Any] = field(hash=False)  # of the model: names of a Hugging Face config, and `mlp`
    framework: str = "NeMo Megatron"  # whose code trains
    device: str = "h100_80gb"  # a name of conf/hardware
    gpus: PositiveInt
    gpus_per_node: PositiveInt = 8
    network_B_per_s: Annotated[float, Bounds(above=0)] = 50e9  # between nodes, per GPU and direction
    seq_len: PositiveInt
    global_batch_size: PositiveInt  # sequences
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] = "bf16"  # of matmuls
    layout: dict[str, Any] = field(hash=False)  # tp, pp, cp, virtual_stages, micro_batch_size, …
    attention: Literal["fused", "explicit"] = "fused"  # explicit: from a score matrix in memory
    tensor_overlap: bool = True  # tensor-parallel collectives run while matmuls do
    gpu_hour_USD: Annotated[float, Bounds(above=0)] | None = None
    run_tokens: Annotated[float, Bounds(above=0)] | None = None  # of a training run, whose cost is asked
    source: str = ""

    @property
    def tokens(self) -> float:
        """Return the tokens of a step."""
        return float(self.global_batch_size * self.seq_len)


@dataclass(frozen=True, slots=True)
class Subject:
    """A step to predict."""

    workload: Workload


def changed(subject: Subject, **fields: Any) -> Subject:
    """Return the subject with other fields of its workload; raises `Unavailable` where it does not divide."""
    workload = replace(subject.workload, **fields)
    refuse_what_does_not_divide(workload)
    return Subject(workload)


def question_of(workload: Workload) -> Mapping[str, Any]:
    """Return the step as a question to the model, in the format of published steps."""
    ranks = {name: int(workload.layout.get(name, 1)) for name in ("tp", "pp", "cp")}
    dp = workload.gpus // (ranks["tp"] * ranks["pp"] * ranks["cp"])
    return {
        "id": "step",
        "kind": "step",
        "model": workload.sizes,
        "framework": workload.framework,
        "device": workload.device,
        "gpus": workload.gpus,
        "gpus_per_node": workload.gpus_per_node,
        "seq_len": workload.seq_len,
        "global_batch_size": workload.global_batch_size,
        "precision": workload.precision,
        "attention": workload.attention,
        "layout": {"sharding": "distributed optimizer", "recompute": "none", **workload.layout, "dp": dp},
    }


def asked_of(subject: Subject) -> AskedStep:
    """Return the question with the workload's own network; raises `Unavailable` for an unknown step."""
    workload = subject.workload
    question = question_of(workload)
    asked = asked_step(question, StepConstants.read())
    if asked is None:
        raise Unavailable(why_not_known(question))
    cluster = asked.setting.cluster._replace(network_B_per_s=workload.network_B_per_s)
    setting = replace(asked.setting, cluster=cluster, tensor_overlap=workload.tensor_overlap)
    return asked._replace(setting=setting)


def refuse_what_does_not_divide(workload: Workload) -> None:
    """Raise `Unavailable` for ranks that do not divide GPUs or batch, and for layers that do not divide."""
    layout = workload.layout
    ranks = 1
    for name in ("tp", "pp", "cp"):
        ranks *= int(layout.get(name, 1))
    if workload.gpus % ranks:
        raise Unavailable(f"tp × pp × cp = {ranks} does not divide the {workload.gpus} GPUs")
    sequences = workload.gpus // ranks * int(layout.get("micro_batch_size", 1))
    if workload.global_batch_size % sequences:
        raise Unavailable(
            f"{sequences} sequences of all data-parallel ranks do not divide the batch of "
            f"{workload.global_batch_size}"
        )
    asked = asked_of(Subject(workload))
    sharded = int(asked.layouts.zero[0]) == 3  # Megatron's FSDP, which the search of layouts leaves out
    if not sharded and (reason := refusal(asked.setting.shape, asked.layouts, asked.setting.training)):
        raise Unavailable(reason)
