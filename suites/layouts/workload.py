"""A workload of the layouts suite: a model, the GPUs it is trained on, and a layout or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt
from harness.question import Dispatcher, ProgramName
from suites.training.workload import Architecture

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
    search: bool = False  # every layout; else the one below
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
    dispatcher: Dispatcher = "alltoall"  # of tokens to their experts
    sequence_parallel: bool = True  # with tensor parallelism
    usable_memory_B: Bytes = 85.0e9  # of one GPU
    architecture: Architecture = "hopper"
    source: str = ""
