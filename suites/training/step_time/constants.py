"""The constants of the model of a step's seconds, each with its source or with what it was fitted to.

What each training program does with a step: its launches, its passes over memory, what it overlaps.

What its code says is here; what had to be fitted is in constants.yaml under the program's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import yaml

from harness.question import ProgramName
from suites.training.step_time.collectives import NodeLinks
from suites.training.step_time.gpu import MatmulRates, RatedGpu


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


PATH = Path(__file__).with_name("constants.yaml")

WHOLE_STEPS = "whole steps"
"""How `fitted_to` begins where a constant was fitted to steps, not to their parts."""


class GpuCluster(NamedTuple):
    """The GPUs of a run and what connects them; rates are per GPU and direction."""

    gpu: RatedGpu
    node_size: int  # GPUs that share the fast link
    network_B_per_s: float
    network: str = "infiniband"  # or efa, whose collectives reach less of the line rate


class StepConstants(dict[str, float]):
    """Constants by name."""

    @classmethod
    def read(cls, **changed: float) -> Self:
        """Return the constants of constants.yaml, some of them changed."""
        return cls({name: entry["value"] for name, entry in entries().items()} | changed)

    def program(self, program: ProgramName) -> ProgramConstants:
        """Return a program's constants."""
        return ProgramConstants(**{name: self[f"{program}.{name}"] for name in CONSTANT_NAMES})

    def matmul(self, gpu: RatedGpu, precision: str) -> MatmulRates:
        """Return what matmuls reach in a long run: of the best single one, what is usual, and its clocks."""
        known = f"matmul.{gpu.architecture}.typical_share" in self
        architecture = gpu.architecture if known else "ampere"
        own = {
            name: self[f"matmul.{architecture}.{name}"]
            for name in MatmulRates._fields
            if name != "peak_share"
        }
        typical = self[f"matmul.{architecture}.typical_share"]
        share = best_share(gpu, precision) * typical * self.sustained(gpu, precision)
        return MatmulRates(peak_share=share, **own)

    def sustained(self, gpu: RatedGpu, precision: str) -> float:
        """Return the share of a short run's rate that clocks leave in a long one."""
        narrow = precision in ("fp8", "mxfp8", "nvfp4")
        width = ".fp8" if narrow else ""
        names = (f"sustained.{gpu.name}", f"sustained.{gpu.architecture}{width}")
        share = next((self[name] for name in names if name in self), 1.0)
        if precision == "nvfp4":
            share *= self["sustained.nvfp4"]
        return float(share * gpu.power_share ** self["power_exponent"])

    def attention_FLOP_per_s(
        self, gpu: RatedGpu, kernel: str, head_dim: int, seq_len: float
    ) -> tuple[float, float]:
        """Return the rates of attention, forward and backward; short sequences and small heads reach less."""
        names = (f"attention.{kernel}.{of}" for of in (gpu.name, gpu.architecture, "ampere"))
        name = next(one for one in names if f"{one}.forward" in self)
        rate = gpu.peak_FLOP_per_s("bf16") * gpu.power_share ** self["power_exponent"]
        rate *= seq_len / (seq_len + self["attention.ramp"])
        rate *= self["attention.small_heads"] if head_dim <= 64 else 1.0
        return rate * self[f"{name}.forward"], rate * self[f"{name}.backward"]

    def scores_share(self, gpu: RatedGpu) -> float:
        """Return the share of the datasheet's memory rate that operators on attention's scores reach."""
        known = f"attention.scores.{gpu.architecture}" in self
        return self[f"attention.scores.{gpu.architecture if known else 'ampere'}"]

    def links(self, cluster: GpuCluster) -> NodeLinks:
        """Return the links as collectives see them."""
        return NodeLinks(
            float(cluster.node_size),
            cluster.gpu.link_B_per_s * self["link.node_share"],
            cluster.network_B_per_s * self[f"link.{cluster.network}_share"],
            self["link.collective_s"],
            self["link.node_hop_s"],
            self["link.network_hop_s"],
        )


ALIKE = {"ampere": "a100_80gb", "hopper": "h100_80gb", "cdna": "mi300x", "ada": "l20"}
"""Of architectures, the GPU whose best matmul rate is known."""


def best_share(gpu: RatedGpu, precision: str) -> float:
    """Return the best measured matmul rate over the datasheet's, of the GPU or of one of its architecture."""
    table: Mapping[str, Mapping[str, float]] = _read()["best_matmul_FLOP_per_s"]
    width = "bf16" if precision == "bf16" else "fp8"
    near = ALIKE.get(gpu.architecture, "b200")
    near = "gb200" if gpu.name.startswith("gb") else "rtx5060ti" if gpu.name.startswith("rtx5") else near
    device = gpu.name if f"{gpu.name}" in table and width in table[gpu.name] else near
    measured = table[device].get(width) or table[device]["bf16"]
    stated = table[device][f"{width}_datasheet" if width in table[device] else "bf16_datasheet"]
    return float(measured) / float(stated)


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """Return each constant by name, with its value and its source or what it was fitted to."""
    named: Mapping[str, Mapping[str, Any]] = _read()["constants"]
    return named


def intervals(of: Literal["intervals", "as_run"] = "intervals") -> Mapping[str, Mapping[str, Any]]:
    """Return the ends of 90 % intervals by kind of question, over the predicted seconds.

    `of`: those of steps as they are tuned, or as the runs come out that others publish.
    """
    by_kind: Mapping[str, Mapping[str, Any]] = _read()[of]
    return by_kind


def fitted_to_whole_steps() -> tuple[str, ...]:
    """Return the names of the constants that were fitted to whole steps."""
    return tuple(
        name for name, entry in entries().items() if str(entry.get("fitted_to", "")).startswith(WHOLE_STEPS)
    )


@cache
def _read() -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load(PATH.read_text())
    return data
