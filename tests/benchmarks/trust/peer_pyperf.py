"""The ops of the experiments as a pyperf script; `UNITS` in the environment says how many units each does.

In NumPy, without the softmax: pyperf starts a process for every few values, and each would import torch anew.
"""

import os
from collections.abc import Callable

import numpy as np
import pyperf

from tests.benchmarks.trust.ops import OPS, Op

OURS = tuple(op for op in OPS if op.kind != "softmax")


def work(op: Op, units: int) -> Callable[[], None]:
    """Do the work of units.py."""
    shape = (op.size, op.size) if op.kind == "matmul" else (op.size,)
    x, y = (np.random.default_rng().normal(size=shape).astype(np.float32) for _ in range(2))
    out = np.empty_like(x)
    unit = {
        "matmul": lambda: np.dot(x, y, out=out),
        "exp": lambda: np.exp(x, out=out),
        "copy": lambda: np.copyto(out, x),
        "cumsum": lambda: np.cumsum(x, out=out),
    }[op.kind]

    def run() -> None:
        for _ in range(units):
            unit()

    return run


if __name__ == "__main__":
    runner = pyperf.Runner()
    chosen = runner.parse_args().worker_task
    for at, op in enumerate(OURS):
        runner.bench_func(op.name, work(op, int(os.environ["UNITS"])) if at == chosen else print)
