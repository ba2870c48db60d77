"""What the layouts of one prediction have in common: model, program, cluster, constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.layout import Floats, Layouts, Training
from suites.training.step_time.collectives import NodeLinks
from suites.training.step_time.rates.constants import GpuCluster, StepConstants
from suites.training.step_time.rates.gpu import RatedGpu
from suites.training.step_time.rates.kernels import MatmulRates
from suites.training.step_time.rates.programs import FACTS, ProgramConstants, ProgramFacts


class RunFacts(NamedTuple):
    """What is known of a published run besides its question; each changes its seconds alone."""

    adapters_alone: bool = False  # weights are frozen, as with LoRA: no gradients of them
    triton_attention: bool = False  # FlashAttention written in Triton, in place of the program's own
    tuned: bool = False  # a submission to MLPerf
    tensor_overlap: bool = True  # where the program can: Megatron's tp-comm-overlap
    routing_forced: bool = False  # every expert gets as many tokens


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
        """Return what the program's code decides."""
        return FACTS[self.training.program]

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
