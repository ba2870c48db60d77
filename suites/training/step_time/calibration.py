"""The constants of the model of a step's seconds, as calibration.yaml has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from suites.training.layouts.layout import Program
from suites.training.step_time.collectives import NodeLinks
from suites.training.step_time.gpu import Gpu
from suites.training.step_time.kernels import MatmulRates
from suites.training.step_time.programs import TRAITS, ProgramTraits

if TYPE_CHECKING:
    from suites.training.step_time.predict import Cluster

PATH = Path(__file__).with_name("calibration.yaml")

DEFAULT = dict(
    moe_imbalance=1.15, grouped_factor=1.1, memory_share=0.8, expert_exposed=0.8, shard_exposed=0.4, send_exposed=0.3,
    straggler=0.01, step_s=0.01, moe_launch=2.0,
    sustained_ampere=1.04, sustained_hopper=0.98, sustained_blackwell=0.9, sustained_fp8=0.9, sustained_nvfp4=0.6,
    flash2_ampere_f=0.62, flash2_ampere_b=0.58, flash2_hopper_f=0.38, flash2_hopper_b=0.33, flash2_blackwell_f=0.3, flash2_blackwell_b=0.25,
    cudnn_ampere_f=0.62, cudnn_ampere_b=0.58, cudnn_hopper_f=0.6, cudnn_hopper_b=0.5, cudnn_blackwell_f=0.6, cudnn_blackwell_b=0.48,
    attention_seq=700.0, attention_head64=1.0, triton_factor=1.9, quantised_B=3.0, reduction_exposed=0.1, mlperf_factor=0.92,
    node_share=0.75, network_share=0.85, collective_s=2e-5, node_hop_s=3e-6, network_hop_s=2e-5, bucket_parameters=12.5e6, fits_below=1.0, retries_from=0.92, retries_width=0.05, retry_s=1.2,
)


class Calibration(dict[str, float]):
    """Constants by name."""

    def traits(self, program: Program) -> ProgramTraits:
        own = {k.split(".")[1]: v for k, v in self.items() if k.startswith(program + ".")}
        return replace(TRAITS[program], **own)

    def matmul(self, architecture: str) -> MatmulRates:
        table = _read()["matmul"]
        values = table.get(architecture, table["ampere"])["values"]
        return MatmulRates(**{k: float(v) for k, v in values.items()})

    def sustained(self, gpu: Gpu, precision: str) -> float:
        base = self.get(f"sustained_{gpu.architecture}", 0.9) * gpu.power_share ** (1 / 3)
        if precision in ("fp8", "mxfp8"):
            base *= self["sustained_fp8"]
        if precision == "nvfp4":
            base *= self["sustained_nvfp4"]
        return base

    def attention(self, gpu: Gpu, kernel: str, head_dim: int, seq_len: float) -> tuple[float, float]:
        arch = gpu.architecture if f"{kernel}_{gpu.architecture}_f" in self else "ampere"
        peak = gpu.peak_FLOP_per_s("bf16") * gpu.power_share ** (1 / 3)
        ramp = seq_len / (seq_len + self["attention_seq"]) * (self["attention_head64"] if head_dim <= 64 else 1.0)
        return peak * self[f"{kernel}_{arch}_f"] * ramp, peak * self[f"{kernel}_{arch}_b"] * ramp

    def links(self, cluster: Cluster) -> NodeLinks:
        return NodeLinks(
            float(cluster.node_size), cluster.gpu.link_B_per_s * self["node_share"], cluster.network_B_per_s * self["network_share"],
            self["collective_s"], self["node_hop_s"], self["network_hop_s"],
        )


@cache
def _read() -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load(PATH.read_text())
    return data


def calibration(**changed: float) -> Calibration:
    """Return the constants, some of them changed."""
    return Calibration({**DEFAULT, **changed})
