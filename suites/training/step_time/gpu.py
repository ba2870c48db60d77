"""The rates of GPUs that bound a training step: datasheets of conf/hardware, and variants of their power."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HARDWARE = Path(__file__).parents[3] / "conf" / "hardware"

PROCESSORS: Mapping[str, int] = {"v100": 80, "a100": 108, "h100": 132, "h200": 132, "gh200": 132, "a40": 84}
"""Streaming multiprocessors: NVIDIA's whitepapers of V100, A100 and H100 (SXM), and of the A40's GA102."""

OTHER_PROCESSORS = 148
"""Of B200: as CUDA reports it in https://github.com/NVIDIA/cutlass/issues/2160."""

NARROW_FACTOR: Mapping[str, float] = {"fp8": 2.0, "mxfp8": 2.0, "nvfp4": 4.0}
"""Dense rate over that of bf16, where a datasheet does not list it: each halving of the bits doubles it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's datasheet. Rates are dense, and links count one direction."""

    name: str
    architecture: str
    memory_B: float
    usable_memory_B: float
    memory_B_per_s: float
    link_B_per_s: float
    matmul_FLOP_per_s: Mapping[str, float]
    processors: int
    power_share: float = 1.0  # of the board's full power limit

    def peak_FLOP_per_s(self, precision: str) -> float:
        """Return the dense matmul rate of a precision; raises KeyError where the GPU has none."""
        if precision in self.matmul_FLOP_per_s:
            return self.matmul_FLOP_per_s[precision]
        if self.architecture in ("ampere", "volta"):
            raise KeyError(precision)
        return self.matmul_FLOP_per_s["bf16"] * NARROW_FACTOR[precision]


@cache
def device_names() -> tuple[str, ...]:
    """Return the names of conf/hardware."""
    return tuple(sorted(path.stem for path in HARDWARE.glob("*.yaml")))


@cache
def gpu_of(device: str) -> Gpu | None:
    """Return the GPU of a name of conf/hardware, or of the nearest: None where no one is near.

    A name may add what its memory or its power differs in, as in h100_96gb or h100_80gb_500w.
    """
    known = device_names()
    name = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    power = re.search(r"_(\d{3,4})w$", name)
    base = name[: power.start()] if power else name
    near = base if base in known else _nearest(base, known)
    if near is None:
        return None
    gpu = _read(near)
    size = re.search(r"_(\d+)gb", base)
    if size and base not in known:
        memory_B = float(size[1]) * 1e9
        gpu = replace(gpu, memory_B=memory_B, usable_memory_B=gpu.usable_memory_B * memory_B / gpu.memory_B)
    if power and gpu.architecture == "hopper":
        gpu = replace(gpu, power_share=min(1.0, float(power[1]) / 700.0))
    return gpu


def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    """Return the name of conf/hardware that shares the chip's name."""
    chip = name.split("_")[0]
    alike = [one for one in known if one.split("_")[0] == chip]
    preferred = [one for one in alike if one in ("h100_80gb", "a100_80gb", "v100_32gb")]
    return (preferred or alike or [None])[0]  # type: ignore[list-item]


def _read(name: str) -> Gpu:
    """Return the GPU of a file of conf/hardware."""
    values: dict[str, Any] = yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())
    return Gpu(
        name=name,
        architecture=values.get("architecture", ""),
        memory_B=float(values["memory_B"]),
        usable_memory_B=float(values.get("usable_memory_B") or values["memory_B"]),
        memory_B_per_s=float(values.get("memory_bandwidth_B_per_s") or 0.0),
        link_B_per_s=float(values.get("link_B_per_s") or 0.0),
        matmul_FLOP_per_s={k: float(v) for k, v in (values.get("matmul_FLOP_per_s") or {}).items()},
        processors=PROCESSORS.get(name.split("_")[0], OTHER_PROCESSORS),
    )
