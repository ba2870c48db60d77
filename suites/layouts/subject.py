"""The layouts suite's types: a model, the GPUs it is trained on, and a layout or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from harness.bounds import Bounds, PositiveInt
from harness.instruments.transformer.shape import TransformerShape
from harness.records import Note, Unavailable
from suites.training.dry_run.simulated_cuda import Architecture
from suites.training.layouts.divide import divisors, refusal, refusal_of_training
from suites.training.layouts.layout import (
    DEFAULT_MODULES,
    RECOMPUTES,
    DispatcherName,
    Layouts,
    ProgramName,
    Training,
)
from suites.training.layouts.search import LayoutGpus
from suites.training.layouts.shape_of_config import shape_of_config

Bytes = Annotated[float, Bounds(above=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and its GPUs. `tp` to `zero` describe one layout; `search` tries all."""

    hf_config: dict[str, Any] = field(hash=False)  # the content of a config.json
    gpus: PositiveInt = 1
    gpus_per_node: PositiveInt = 8
    seq_len: PositiveInt
    global_batch_size: PositiveInt | None = None  # sequences of one update; None: not known
    program: ProgramName = "megatron"  # whose code trains
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] = "bf16"
    optimizer: Literal["adamw", "adamw_8bit", "sgd_momentum"] = "adamw"
    offload: Literal["none", "optimizer", "parameters"] = "none"
    fused_loss: bool = False
    compiled: bool = False  # torch.compile, which changes the seconds alone
    search: bool = False  # every layout; else the one below
    seconds: bool = False  # predict them, and rank layouts by them
    device: str = "h100_80gb"  # a name of conf/hardware, whose rates decide the seconds
    network_B_per_s: Bytes = 50e9  # between nodes, per GPU and direction
    network: Literal["infiniband", "efa"] = "infiniband"
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    cp: PositiveInt = 1
    ep: PositiveInt = 1
    etp: PositiveInt | None = None  # tensor-parallel ranks of one expert; None: tp of Megatron-LM, else 1
    virtual_stages: PositiveInt = 1
    zero: Annotated[int, Bounds(at_least=0, at_most=3)] = 1
    shard_size: PositiveInt | None = None  # ranks of hybrid sharding; None: all data-parallel ones
    micro_batch_size: PositiveInt = 1
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: list[Any] = field(default_factory=list, hash=False)  # of selective; []: core_attn
    dispatcher: DispatcherName = "alltoall"  # of tokens to their experts
    sequence_parallel: bool = True  # with tensor parallelism
    usable_memory_B: Bytes = 85.0e9  # of one GPU
    architecture: Architecture = "hopper"
    source: str = ""


PRECISIONS = {
    "ada": ("bf16", "fp8"),
    "hopper": ("bf16", "fp8"),
    "cdna": ("bf16", "fp8"),
    "blackwell": ("bf16", "fp8", "mxfp8", "nvfp4"),
}
"""Of matmuls, by architecture, bf16 alone for others: NVIDIA's and AMD's datasheets in conf/hardware."""


class Subject(NamedTuple):
    """A question about layouts, checked."""

    workload: Workload
    shape: TransformerShape
    training: Training
    cluster: LayoutGpus
    layout: Layouts  # one; of a search, the plainest


def subject_of(workload: Workload) -> Subject:
    """Return the question; raises `Unavailable` for a model without a shape, or what does not divide."""
    able = PRECISIONS.get(workload.architecture, ("bf16",))
    if workload.precision not in able:
        raise Unavailable(
            f"precision={workload.precision}: {workload.architecture} GPUs have no such matmuls; allowed: "
            f"{', '.join(able)}"
        )
    if workload.seconds and workload.offload != "none":
        raise Unavailable(
            f"offload={workload.offload}: seconds of offloaded states are not modelled; give none"
        )
    training = Training(
        seq_len=workload.seq_len,
        program=workload.program,
        precision=workload.precision,
        optimizer=workload.optimizer,
        offload=workload.offload,
        fused_loss=workload.fused_loss,
        recompute_modules=tuple(workload.recompute_modules) or DEFAULT_MODULES,
        dispatcher=workload.dispatcher,
        attention="flash" if workload.program != "megatron" else "fused",
    )
    shape = shape_of_config(workload.hf_config)
    cluster = LayoutGpus(
        workload.gpus, workload.gpus_per_node, workload.usable_memory_B, workload.architecture
    )
    if reason := refusal_of_training(shape, training):
        raise Unavailable(reason)
    if workload.seconds and (workload.recompute_modules or workload.dispatcher != "alltoall"):
        raise Unavailable("recompute_modules, dispatcher: their seconds are not modelled; leave them out")
    layout = layout_of(workload)
    if not workload.search and (reason := refusal(shape, layout, training)):
        raise Unavailable(reason)
    return Subject(workload, shape, training, cluster, layout)


def layout_of(workload: Workload) -> Layouts:
    """Return the layout; raises `Unavailable` where its ranks do not divide the GPUs or the batch."""
    ranks = workload.tp * workload.pp * workload.cp
    if workload.gpus % ranks:
        raise Unavailable(
            f"tp × pp × cp = {workload.tp} × {workload.pp} × {workload.cp} = {ranks} does not divide the "
            f"{workload.gpus} GPUs; its divisors do: {', '.join(map(str, divisors(workload.gpus)[:12]))}"
        )
    dp = workload.gpus // ranks
    sequences = dp * workload.micro_batch_size
    batch = None if workload.search else workload.global_batch_size
    if batch is not None and batch % sequences:
        raise Unavailable(
            f"global_batch_size={batch} is no multiple of dp × micro_batch_size = {dp} × "
            f"{workload.micro_batch_size} = {sequences}"
        )
    row: dict[str, int] = {
        name: getattr(workload, name) for name in ("tp", "pp", "cp", "ep", "virtual_stages", "zero")
    }
    row["etp"] = workload.etp or default_etp(workload)
    row |= {"dp": dp, "micro_batch_size": workload.micro_batch_size}
    row["micro_batches"] = batch // sequences if batch else (4 * workload.pp if workload.pp > 1 else 1)
    row["recompute"] = RECOMPUTES.index(workload.recompute)
    row["sequence_parallel"] = int(workload.sequence_parallel and workload.tp > 1)
    row["shard_size"] = workload.shard_size or 0
    return Layouts.of([row])


def parts_note(layouts: Layouts, index: int = 0) -> Note:
    """Return every part of the layout that an answer has first, as `layout=` has them."""
    return Note(
        "parts: " + ",".join(f"{name}:{int(getattr(layouts, name)[index])}" for name in Layouts._fields)
    )


def default_etp(workload: Workload) -> int:
    """Return the tensor-parallel ranks of one expert where none are given.

    Megatron-LM's --expert-tensor-parallel-size is --tensor-model-parallel-size by default
    (megatron/training/arguments.py).
    """
    experts = workload.hf_config.get("num_experts") or workload.hf_config.get("num_local_experts")
    has_experts = bool(experts or workload.hf_config.get("n_routed_experts"))
    return workload.tp if workload.program == "megatron" and has_experts else 1
