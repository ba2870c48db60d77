"""What each training program does with a step: its launches, its passes over memory, what it overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from suites.training.layouts.layout import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTraits:
    """How one program runs a step. Launch seconds are those of the host, which the GPU cannot outrun."""

    layer_launch_s: float  # forward and backward of a layer
    tp_launch_s: float = 0.0  # more of it with tensor parallelism
    pointwise_factor: float  # bytes that operations between matmuls move, over those of fused kernels
    logit_B: float  # moved per logit by the loss, forward and backward
    accumulate_B: float  # moved per parameter to add a micro-batch's gradient
    update_B: float  # moved per parameter to update it
    reduced_B: float  # bytes of a gradient as it is sent
    tp_exposed: float  # share of tensor-parallel communication that nothing hides
    reduction_overlaps: bool  # gradients are sent while the last backward runs
    gather_overlaps: bool  # parameters are gathered while the next forward runs
    attention_kernel: str = "flash2"
    pipeline_tp_s: float = 0.0  # of launches per layer and tensor-parallel rank, where a pipeline spans nodes
    tp_network_s: float = 0.0  # more of a collective, per node that tensor parallelism spans besides the first
    sustained: float = 1.0  # share of the rate of matmuls that this program reaches


TRAITS: Mapping[Program, ProgramTraits] = {
    "megatron": ProgramTraits(
        layer_launch_s=1.6e-3, pointwise_factor=1.0, logit_B=12, accumulate_B=8, update_B=34, reduced_B=2, attention_kernel="cudnn",
        tp_exposed=0.35, reduction_overlaps=True, gather_overlaps=True,
    ),
    "nanotron": ProgramTraits(
        layer_launch_s=2.5e-3, tp_launch_s=1.6e-3, pipeline_tp_s=2.2e-3, tp_network_s=0.39e-3, sustained=0.80, pointwise_factor=1.4, logit_B=56, accumulate_B=14, update_B=60, reduced_B=4,
        tp_exposed=0.95, reduction_overlaps=False, gather_overlaps=False,
    ),
    "composer": ProgramTraits(
        layer_launch_s=2.0e-3, pointwise_factor=1.3, logit_B=40, accumulate_B=10, update_B=60, reduced_B=2,
        tp_exposed=1.0, reduction_overlaps=True, gather_overlaps=True,
    ),
    "torchtitan": ProgramTraits(
        layer_launch_s=1.5e-3, pointwise_factor=1.1, logit_B=30, accumulate_B=10, update_B=40, reduced_B=2,
        tp_exposed=1.0, reduction_overlaps=True, gather_overlaps=True,
    ),
    "deepspeed": ProgramTraits(
        layer_launch_s=2.0e-3, pointwise_factor=1.4, logit_B=40, accumulate_B=12, update_B=40, reduced_B=2,
        tp_exposed=1.0, reduction_overlaps=True, gather_overlaps=False,
    ),
}
