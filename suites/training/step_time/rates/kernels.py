"""Seconds of single kernels as arrays: matmuls by shape, attention, and operations bound by memory.

A matmul is cut into tiles, and each processor takes one tile at a time, so the last wave may leave processors
idle. Of several tile sizes the fastest counts. Constants: constants.yaml.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.training.step_time.collectives import Amount, Floats
from suites.training.step_time.rates.gpu import RatedGpu

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
