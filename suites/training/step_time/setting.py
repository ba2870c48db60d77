"""What the layouts of one prediction have in common: model, program, cluster, constants.

Seconds of attention from a score matrix in memory, without FlashAttention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from harness.question import Rollout
from suites.training.layouts.layout import Floats, Layouts, Training
from suites.training.step_time.collectives import NodeLinks
from suites.training.step_time.constants import (
    FACTS,
    GpuCluster,
    ProgramConstants,
    ProgramFacts,
    StepConstants,
)
from suites.training.step_time.gpu import MatmulRates, RatedGpu


class LayerKind(NamedTuple):
    """How layers of one model differ."""

    moe: bool
    windowed: bool
    attention: bool = True
    linear: bool = False  # a linear mixer in attention's place
    mlp: bool = True  # an MLP or experts


class AdapterLoad(NamedTuple):
    """Adapted linear layers, and their sizes in sum."""

    linears: int = 0
    inputs: int = 0
    outputs: int = 0

    def plus(self, other: AdapterLoad) -> AdapterLoad:
        """Return both."""
        return AdapterLoad(*(one + two for one, two in zip(self, other, strict=True)))


class LayerAdapters(NamedTuple):
    """The adapters of the parts that a layer can have; of experts those that a token passes."""

    attention: AdapterLoad = AdapterLoad()
    linear: AdapterLoad = AdapterLoad()
    mlp: AdapterLoad = AdapterLoad()
    experts: AdapterLoad = AdapterLoad()

    def of(self, kind: LayerKind) -> AdapterLoad:
        """Return those of a layer of one kind."""
        has = kind.attention, kind.linear, kind.mlp and not kind.moe, kind.mlp and kind.moe
        loads = (load for load, true in zip(self, has, strict=True) if true)
        return sum_of(loads)


def sum_of(loads: Iterable[AdapterLoad]) -> AdapterLoad:
    """Return all adapted linear layers."""
    total = AdapterLoad()
    for load in loads:
        total = total.plus(load)
    return total


class RunFacts(NamedTuple):
    """What is known of a published run besides its question; each changes its seconds alone."""

    adapters_alone: bool = False  # weights are frozen, as with LoRA: no gradients of them
    triton_attention: bool = False  # FlashAttention written in Triton, in place of the program's own
    tuned: bool = False  # a submission to MLPerf
    tensor_overlap: bool = True  # where the program can: Megatron's tp-comm-overlap
    routing_forced: bool = False  # every expert gets as many tokens
    synchronous_experts: bool = False  # Megatron-Core's host waits for each layer's routing; nothing overlaps
    imbalance: float | None = None  # of the rank with the busiest experts, where that is known
    dispatcher: str = ""
    eager: bool = False  # transformers' layers, kernel by kernel
    fused: bool = False  # but for norms, rotations and activations: Liger's kernels, Unsloth's
    torch_attention: bool = False  # torch's own choice of a kernel: cuDNN's on Hopper and later
    adapters: LayerAdapters = LayerAdapters()
    base: str = ""  # how frozen weights are quantized: nf4, int8, gptq
    rollout: Rollout = "none"  # answers are generated within the step: GRPO
    forward_passes: int = 0  # without gradients, per sequence: a reference model's


PLAIN = RunFacts()
"""Of a run of which nothing else is known."""


@dataclass(frozen=True)
class StepSetting:
    """A model that a program trains on a cluster, and the constants to predict it with."""

    shape: TransformerShape
    training: Training
    cluster: GpuCluster
    constants: StepConstants
    compiled: bool = False  # torch.compile fuses what a program has between matmuls
    run: RunFacts = PLAIN

    @property
    def gpu(self) -> RatedGpu:
        """Return the GPU."""
        return self.cluster.gpu

    @property
    def precision(self) -> str:
        """Return the precision of matmuls; 16-bit ones are as fast as one another."""
        narrow = self.training.precision in ("fp8", "mxfp8", "nvfp4")
        return self.training.precision if narrow else "bf16"

    @cached_property
    def facts(self) -> ProgramFacts:
        """Return what the program's code decides.

        torch's context parallelism takes torch's attention, which prefers cuDNN's kernel from H100 on:
        https://pytorch.org/blog/pytorch2-5/.
        """
        facts = FACTS[self.training.program]
        return replace(facts, attention="cudnn") if self.run.torch_attention else facts

    @cached_property
    def own(self) -> ProgramConstants:
        """Return the program's constants."""
        own = self.constants.program(self.training.program)
        fused = self.constants["compiled_pointwise_factor"] if self.compiled else own.pointwise_factor
        exposed = own.tp_exposed if self.run.tensor_overlap else 1.0
        return replace(own, pointwise_factor=fused, tp_exposed=max(own.tp_exposed, exposed))

    @cached_property
    def links(self) -> NodeLinks:
        """Return the cluster's links."""
        return self.constants.links(self.cluster)

    @cached_property
    def memory_B_per_s(self) -> float:
        """Return the rate that kernels bound by memory reach."""
        return self.gpu.memory_B_per_s * self.constants["memory_share"]

    def matmul_rates(self, precision: str) -> MatmulRates:
        """Return what matmuls reach, of a program that slows them by as much as `sustained` says."""
        rates = self.constants.matmul(self.gpu, precision)
        return rates._replace(peak_share=rates.peak_share * self.own.sustained)

    def tokens(self, layouts: Layouts) -> Floats:
        """Return the tokens of one micro-batch on one context-parallel rank."""
        tokens: Floats = layouts.micro_batch_size * self.training.seq_len / layouts.cp
        return tokens


ELEMENT_B = 2.0
"""Bytes of a score: bf16."""

SOFTMAX_FORWARD_B, SOFTMAX_BACKWARD_B = 4.0, 6.0
"""Bytes per score that softmax moves: read and written; its result and a gradient read, another written."""

MASK_B = 4.0
"""Of a mask that is added before softmax: read and written."""

FUSED_UP_TO = 16384
"""Keys up to which Transformer Engine's softmax has scale and mask in it: is_kernel_available in
pytorch/attention/dot_product_attention/softmax.py. Other programs add the mask."""


class ScoreOperators(NamedTuple):
    """Operators on a score matrix of one pass."""

    products: int  # matmuls that read or write all scores once
    moved_B: float  # of the others, per score


def operators(setting: StepSetting) -> tuple[ScoreOperators, ScoreOperators]:
    """Return the operators of the forward and of the backward pass.

    Forward: queries with keys, softmax, its result with values. Backward: the gradients of values and of the
    softmax's result, softmax, the gradients of queries and keys (torch/nn/functional.py,
    scaled_dot_product_attention; Transformer Engine's UnfusedDotProductAttention).
    """
    fused = setting.training.program == "megatron" and setting.training.seq_len < FUSED_UP_TO
    forward = ScoreOperators(2, SOFTMAX_FORWARD_B + (0.0 if fused else MASK_B))
    return forward, ScoreOperators(4, SOFTMAX_BACKWARD_B)


def scores_s(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the seconds of explicit attention, forward and backward, of one layer on one micro-batch.

    Each operator takes as long as its FLOP or its bytes do. Masked scores are computed, too, and so are those
    outside of a window. Keys and values that groups of heads share are few next to scores.
    """
    gpu, shape = setting.gpu, setting.shape
    scores = setting.tokens(layouts) * setting.training.seq_len * shape.num_attention_heads / layouts.tp
    rate = gpu.memory_B_per_s * setting.constants.scores_share(gpu)
    size = max(shape.head_dim, shape.value_dim)
    peak = gpu.peak_FLOP_per_s("bf16") * setting.matmul_rates("bf16").peak_share
    product_s = max(ELEMENT_B / rate, 2.0 * size / peak)
    forward, backward = (
        np.asarray(scores * (each.products * product_s + each.moved_B / rate), dtype=float)
        for each in operators(setting)
    )
    return forward, backward
