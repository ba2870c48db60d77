"""What a GPU's kernels reach: its rates by datasheet, and seconds of single kernels as arrays.

Rates are those of conf/hardware, and of variants of these devices. Kernels are matmuls by shape, attention,
and operations bound by memory. A matmul is cut into tiles, and each processor takes one tile at a time, so
the last wave may leave processors idle. Of several tile sizes the fastest counts. Constants: constants.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

import harness
from harness.records import Unavailable
from suites.training.step_time.collectives import Amount, Floats

HARDWARE = Path(harness.__file__).parent / "conf" / "hardware"  # a link to conf/, a copy where installed

OTHER_PROCESSORS = 148
"""Of B200, as CUDA reports it; others are taken for alike, since only the last wave depends on it."""

NARROW_FACTOR: Mapping[str, float] = {"fp8": 2.0, "mxfp8": 2.0, "nvfp4": 4.0}
"""Dense rate over that of bf16, where a datasheet does not list it: each halving of the bits doubles it."""

STACK_B, STACK_B_PER_S = 16e9, 400e9
"""Of HBM2e on an H100, whose PCIe card has five stacks: 80 GB at 2.0 TB/s (conf/hardware/h100_pcie.yaml)."""

FULL_POWER_W = 700.0
"""Of H100 SXM, https://www.nvidia.com/en-us/data-center/h100/."""

LESS_POWER_W = 500.0
"""Of the H100 with HBM2e: what published steps on it say."""


@dataclass(frozen=True, slots=True)
class RatedGpu:
    """One GPU's datasheet. Rates are dense, and links count one direction."""

    name: str
    architecture: str
    memory_B: float
    usable_memory_B: float
    memory_B_per_s: float
    link_B_per_s: float
    matmul_FLOP_per_s: Mapping[str, float]
    processors: int
    power_share: float = 1.0  # of the chip's full power limit
    title: str = ""  # in words, of the file of conf/hardware

    def peak_FLOP_per_s(self, precision: str) -> float:
        """Return the dense matmul rate of a precision; raises KeyError where the GPU has none.

        Where bf16 is emulated, that of fp16, in which people train there.
        """
        if precision == "bf16" and precision not in self.matmul_FLOP_per_s:
            precision = "fp16"
        if precision in self.matmul_FLOP_per_s:
            return self.matmul_FLOP_per_s[precision]
        if self.architecture in ("ampere", "volta", "turing"):
            raise KeyError(f"{self.name} has no matmuls in {precision}")
        return self.matmul_FLOP_per_s["bf16"] * NARROW_FACTOR[precision]


@cache
def device_names() -> tuple[str, ...]:
    """Return the names of conf/hardware."""
    return tuple(sorted(path.stem for path in HARDWARE.glob("*.yaml")))


@cache
def gpu_of(device: str) -> RatedGpu | None:
    """Return the GPU of a name of conf/hardware, or of a variant of one: None where no chip is alike.

    A variant's name adds what differs, as in h100_96gb, h100_80gb_500w or h100_64gb_hbm2e. A chip's name has
    a number: rtx_5090 is rtx5090, and rtx alone is none.
    """
    name = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    known = device_names()
    if spelled := [one for one in known if one.replace("_", "") == name.replace("_", "")]:
        return _read(name if name in spelled else spelled[0])
    chip = name.split("_")[0]
    if not re.search(r"\d", chip):
        return None
    for near in known:
        if chip in (differs := content_of(near).get("variants") or {}):
            changed: dict[str, Any] = {field: float(value) for field, value in differs[chip].items()}
            return _variant(replace(_read(near), **changed), name, chip)
    near = next((one for one in known if one.split("_")[0] == chip), "")
    return _variant(_read(near), name, chip) if near else None


def known_gpu(device: str) -> RatedGpu:
    """Return the GPU of a name; raises `Unavailable` where no chip is alike."""
    gpu = gpu_of(device)
    if gpu is None:
        raise Unavailable(f"device={device}: conf/hardware has no GPU like it")
    return gpu


def nvlink_domain(device: str, gpus_per_node: int) -> int:
    """Return how many GPUs share the fast link: those of a node, of GB200 and GB300 those of a rack."""
    near = next((one for one in (device, device.split("_")[0]) if one in device_names()), None)
    return int((near and content_of(near).get("link_domain")) or gpus_per_node)


@cache
def content_of(name: str) -> Mapping[str, Any]:
    """Return what a file of conf/hardware has."""
    content: Mapping[str, Any] = yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())
    return content


def _variant(gpu: RatedGpu, name: str, chip: str) -> RatedGpu:
    """Return a GPU with what a name says of its memory, its power and its links."""
    size = re.search(r"_(\d+)gb", name)
    if size:
        share = float(size[1]) * 1e9 / gpu.memory_B
        usable_B = gpu.usable_memory_B * share
        gpu = replace(gpu, memory_B=gpu.memory_B * share, usable_memory_B=usable_B)
    power = re.search(r"_(\d{3,4})w", name)
    if chip == "h100" and ("hbm2e" in name or (size and size[1] in ("64", "96"))):
        gpu = replace(gpu, memory_B_per_s=gpu.memory_B / STACK_B * STACK_B_PER_S)
        gpu = replace(gpu, power_share=LESS_POWER_W / FULL_POWER_W)
    if power and gpu.architecture == "hopper":
        gpu = replace(gpu, power_share=min(1.0, float(power[1]) / FULL_POWER_W))
    return replace(gpu, name=name)


def _read(name: str) -> RatedGpu:
    """Return the GPU of a file of conf/hardware."""
    values = content_of(name)
    rates = values.get("matmul_FLOP_per_s") or {}
    return RatedGpu(
        name=name,
        architecture=values.get("architecture", ""),
        memory_B=float(values["memory_B"]),
        usable_memory_B=float(values.get("usable_memory_B") or values["memory_B"]),
        memory_B_per_s=float(values.get("memory_bandwidth_B_per_s") or 0.0),
        link_B_per_s=float(values.get("link_B_per_s") or 0.0),
        matmul_FLOP_per_s={precision: float(rate) for precision, rate in rates.items()},
        processors=values.get("processors") or OTHER_PROCESSORS,
        power_share=values.get("power_share") or 1.0,
        title=str(values.get("name", name)),
    )


TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64))
"""Rows and columns of a tile, as cuBLAS and CUTLASS have them for 16-bit operands."""


class MatmulRates(NamedTuple):
    """What matmuls reach on one architecture."""

    peak_share: float  # of the datasheet's rate, by the largest tiles
    smaller_tile: float  # rate of a 128 x 128 tile over that of the largest
    smallest_tile: float  # rate over that of twice the size, below 128 x 128
    memory_share: float  # of the datasheet's memory rate
    quantisation: float  # 1: the last wave counts in full; 0: not at all
    inner_offset: float  # elements of the inner dimension that a tile's start and end cost
    fixed_s: float  # of each kernel


def matmul_s(
    rows: Amount, columns: Amount, inner: Amount, gpu: RatedGpu, rates: MatmulRates, precision: str = "bf16"
) -> Floats:
    """Return the seconds of one product of [rows, inner] and [inner, columns]."""
    m, n, k = (np.asarray(one, dtype=float) for one in (rows, columns, inner))
    peak = gpu.peak_FLOP_per_s(precision)
    best: Floats = np.full(np.broadcast(m, n, k).shape, np.inf)
    for height, width in TILES:
        tiles = np.ceil(m / height) * np.ceil(n / width)
        waves = tiles / gpu.processors
        counted = rates.quantisation * np.ceil(waves) + (1 - rates.quantisation) * np.maximum(waves, 1.0)
        flop = 2.0 * height * width * (k + rates.inner_offset) * gpu.processors
        best = np.minimum(
            best, counted * flop / (peak * rates.peak_share * _tile_rate(height * width, rates))
        )
    element_B = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}.get(precision, 2.0)
    moved_B = element_B * (m * k + k * n) + 2.0 * m * n
    by_memory = moved_B / (gpu.memory_B_per_s * rates.memory_share)
    seconds: Floats = np.maximum(best, by_memory) + rates.fixed_s
    return seconds


def _tile_rate(size: int, rates: MatmulRates) -> float:
    """Return a tile's rate over that of the largest."""
    if size > 128 * 128:
        return 1.0
    return float(rates.smaller_tile * rates.smallest_tile ** np.log2(128 * 128 / size))


def attention_flop(tokens: Amount, seen: Amount, query_size: Amount, value_size: Amount) -> Amount:
    """Return the FLOP of attention's two products forward, where a token sees `seen` others on average."""
    return 2.0 * tokens * seen * (query_size + value_size)
