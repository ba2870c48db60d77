"""A workload of the step_gains suite: one training step at scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt
from harness.question import ProgramName


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step."""

    # of the model: names of a Hugging Face config, and `gated_mlp`
    sizes: dict[str, Any] = field(hash=False)
    program: ProgramName = "megatron"  # whose code trains; of megatron, a recipe of NeMo
    device: str = "h100_80gb"  # a name of conf/hardware
    gpus: PositiveInt
    gpus_per_node: PositiveInt = 8
    network_B_per_s: Annotated[float, Bounds(above=0)] = 50e9  # between nodes, per GPU and direction
    seq_len: PositiveInt
    global_batch_size: PositiveInt  # sequences
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] = "bf16"  # of matmuls
    layout: dict[str, Any] = field(hash=False)  # tp, pp, cp, zero, virtual_stages, micro_batch_size, …
    attention: Literal["fused", "explicit"] = "fused"  # explicit: from a score matrix in memory
    tensor_overlap: bool = True  # tensor-parallel collectives run while matmuls do
    gpu_hour_USD: Annotated[float, Bounds(above=0)] | None = None
    run_tokens: Annotated[float, Bounds(above=0)] | None = None  # of a training run, whose cost is asked
    source: str = ""

    @property
    def tokens(self) -> float:
        """Return the tokens of a step."""
        return float(self.global_batch_size * self.seq_len)
