"""What each training program does with a step: its launches, its passes over memory, what it overlaps.

What its code says is here; what had to be fitted is in constants.yaml under the program's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from harness.question import ProgramName


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """What a program's code decides. The defaults are what most programs do."""

    attention: str = "flash2"  # whose kernel computes attention: flash2 or cudnn
    reduced_B: float = 2  # bytes of a gradient as it is sent
    reduction_overlaps: bool = True  # gradients are sent while the last backward pass runs
    gather_overlaps: bool = True  # updated parameters are gathered while the next forward pass runs
    again_matmul: float = 0.0  # of selective recompute: the share of the forward pass's matmuls
    again_attention: float = 1.0  # and of its attention
    again_pointwise: float = 0.0  # and of the rest


FACTS: Mapping[ProgramName, ProgramFacts] = {
    # Megatron Bridge's and NeMo's recipes reduce in bf16 and overlap both (perf_recipes/_common.py,
    # training/comm_overlap.py); Megatron-Core recomputes the core attention (transformer_config.py)
    "megatron": ProgramFacts(attention="cudnn"),
    # fp32 gradients are reduced after the last backward pass with ZeRO-1, during it without
    # (trainer.py, training_step; optim/gradient_accumulator.py); parameters are gathered in the update
    # (optim/zero.py, step)
    "nanotron": ProgramFacts(reduced_B=4, reduction_overlaps=False, gather_overlaps=False),
    # FSDP in mixed precision PURE reduces in bf16 and prefetches (composer/trainer/dist_strategy.py)
    "composer": ProgramFacts(again_attention=0.0, again_pointwise=1.0),
    # fp32 reductions (torchtitan/config, mixed_precision_reduce); selective recompute keeps every second
    # matmul and attention (distributed/activation_checkpoint.py)
    "torchtitan": ProgramFacts(reduced_B=4, again_matmul=0.5, again_attention=0.0, again_pointwise=1.0),
    # ZeRO reduces 16-bit gradients in buckets while the backward pass runs and gathers parameters in the
    # update (deepspeed/runtime/zero/stage_1_and_2.py)
    "deepspeed": ProgramFacts(gather_overlaps=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConstants:
    """What was fitted or estimated of a program. No GPU outruns the host's launches."""

    layer_launch_s: float  # forward and backward of a layer
    tp_launch_s: float  # more of it with tensor parallelism
    zero_launch_s: float  # more of it with sharded states
    pipeline_tp_s: float  # more of it per tensor-parallel rank, where a pipeline spans nodes
    tp_network_s: float  # more of a collective, per node that tensor parallelism spans besides the first
    ddp_pipeline_s: float  # per micro-batch with ZeRO-0, where a pipeline of two stages spans nodes
    pointwise_factor: float  # bytes that operations between matmuls move, over those of fused kernels
    quantised_factor: float  # bytes that quantisation moves, over those of Megatron's kernels
    logit_B: float  # moved per logit by the loss, forward and backward
    accumulate_B: float  # moved per parameter to add a micro-batch's gradient
    update_B: float  # moved per parameter to update it
    tp_exposed: float  # share of tensor-parallel communication that nothing hides
    shard_exposed: float  # the same of gathered and reduced shards (ZeRO-3)
    sustained: float  # share of the rate of matmuls in long runs that this program reaches


CONSTANT_NAMES = tuple(field.name for field in fields(ProgramConstants))
