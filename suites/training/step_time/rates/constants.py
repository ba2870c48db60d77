"""The constants of the model of a step's seconds, each with its source or with what it was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from harness.question import ProgramName
from suites.training.step_time.collectives import NodeLinks
from suites.training.step_time.rates.gpu import RatedGpu
from suites.training.step_time.rates.kernels import MatmulRates
from suites.training.step_time.rates.programs import CONSTANT_NAMES, ProgramConstants

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
        share = self.get(
            f"sustained.{gpu.architecture}.fp8" if narrow else f"sustained.{gpu.architecture}", 1.0
        )
        if precision == "nvfp4":
            share *= self["sustained.nvfp4"]
        return float(share * gpu.power_share ** self["power_exponent"])

    def attention_FLOP_per_s(
        self, gpu: RatedGpu, kernel: str, head_dim: int, seq_len: float
    ) -> tuple[float, float]:
        """Return the rates of attention, forward and backward; short sequences and small heads reach less."""
        known = f"attention.{kernel}.{gpu.architecture}.forward" in self
        name = f"attention.{kernel}.{gpu.architecture if known else 'ampere'}"
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


def best_share(gpu: RatedGpu, precision: str) -> float:
    """Return the best measured matmul rate over the datasheet's, of the GPU or of one of its architecture."""
    table: Mapping[str, Mapping[str, float]] = _read()["best_matmul_FLOP_per_s"]
    width = "bf16" if precision == "bf16" else "fp8"
    alike = {"ampere": "a100_80gb", "hopper": "h100_80gb", "cdna": "mi300x"}.get(gpu.architecture, "b200")
    near = "gb200" if gpu.name.startswith("gb") else alike
    device = gpu.name if f"{gpu.name}" in table and width in table[gpu.name] else near
    measured = table[device].get(width) or table[device]["bf16"]
    stated = table[device][f"{width}_datasheet" if width in table[device] else "bf16_datasheet"]
    return float(measured) / float(stated)


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """Return each constant by name, with its value and its source or what it was fitted to."""
    named: Mapping[str, Mapping[str, Any]] = _read()["constants"]
    return named


def intervals() -> Mapping[str, Mapping[str, Any]]:
    """Return the ends of 90 % intervals by kind of question, over the predicted seconds."""
    by_kind: Mapping[str, Mapping[str, Any]] = _read()["intervals"]
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
