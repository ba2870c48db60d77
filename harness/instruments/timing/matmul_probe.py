"""Measures how fast this CPU multiplies matrices in fp32 and in bf16, in a fraction of a second.

A CPU without AVX-512 or AMX has no instruction for bf16 products, and torch then computes them 10 to 100
times slower than fp32. `python -m harness.instruments.timing.matmul_probe` prints the rates as one JSON
object, for callers that must not import torch themselves.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache

import torch

SIZE = 128
"""Rows and columns: 4.2 MFLOP per product, so that even 0.25 GFLOP/s takes only 17 ms."""

ROUNDS, LEAST_S = 5, 0.1
"""Products per dtype, interleaved: at least so many, and for so long. The fastest counts, so that other work
on this machine does not."""

SLOW = 5.0
"""Times that bf16 must be slower than fp32 to be called slow. CPUs with AVX-512 stay below 2 at this size."""


@cache
def matmul_FLOP_per_s() -> dict[str, float]:
    """Return the matmul rate of one thread per dtype ("fp32", "bf16"), measured once per process.

    One thread, because two wait for each other on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {dtype: 2 * SIZE**3 / seconds for dtype, seconds in _shortest_s().items()}
    finally:
        torch.set_num_threads(threads)


def _shortest_s() -> dict[str, float]:
    matrices = {"fp32": torch.ones(SIZE, SIZE), "bf16": torch.ones(SIZE, SIZE, dtype=torch.bfloat16)}
    best_s = dict.fromkeys(matrices, float("inf"))
    rounds, started_s = 0, time.perf_counter()
    with torch.no_grad():
        while rounds < ROUNDS or time.perf_counter() - started_s < LEAST_S:
            for dtype, matrix in matrices.items():
                start_s = time.perf_counter()
                torch.mm(matrix, matrix)
                best_s[dtype] = min(best_s[dtype], time.perf_counter() - start_s)
            rounds += 1
    return best_s


def bf16_is_slow() -> bool:
    """Return whether bf16 products run several times slower than fp32 on this CPU."""
    rates = matmul_FLOP_per_s()
    return rates["fp32"] > SLOW * rates["bf16"]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"matmul_FLOP_per_s": matmul_FLOP_per_s()}) + "\n")
