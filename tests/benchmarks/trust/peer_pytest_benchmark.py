"""The ops of the experiments for pytest-benchmark; `UNITS` in the environment: how many units each does."""

import os

import pytest
import torch

from tests.benchmarks.trust.ops import OPS, Op
from tests.benchmarks.trust.units import work


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_op(benchmark, op: Op) -> None:
    torch.set_num_threads(1)
    benchmark(work(op, int(os.environ["UNITS"])))
