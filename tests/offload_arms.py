"""The offload suite's variants on real ranks that last for a file's tests: what several test files share."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean

import pytest

from harness.instruments.distributed.rank_pool import Place, Pool
from suites.offload import on_rank
from suites.offload.correctness import TOLERANCES
from suites.offload.ranks import COMPILE_S
from suites.offload.subject import Plan, Subject, Workload

HERE = Path(__file__).parent
SEED = 3
STEPS = 6

WORKLOAD = Workload(
    num_hidden_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=176,
    vocab_size=64,
    micro_batch_size=2,
    seq_len=16,
    precision="fp32",
    ranks=2,
    learning_rate=3e-3,
    loss_steps=8,
)
BF16 = replace(WORKLOAD, precision="bf16")
REST = 2 * 64 * 64 + 64  # embedding and head, last norm
BLOCKS = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64)
COUNT = BLOCKS + REST

SETTINGS = {"partial_offload": {"ratio": 0.5}}
TORCH = ("baseline", "fsdp2", "fsdp2_offload", "host_update")
DEEPSPEED = (
    "zero1",
    "zero2",
    "zero3",
    "zero1_offload",
    "zero2_offload",
    "zero3_offload",
    "zero3_offload_params",
    "zero_infinity",
    "partial_offload",
)
ARMS = (*TORCH, *(pytest.param(name, marks=pytest.mark.slow) for name in DEEPSPEED))


def subject_of(name, workload=WORKLOAD):
    """The variant's subject; skips where this machine lacks what it needs."""
    module = import_module(f"suites.offload.{name}")
    reason = module.unavailable(None)
    if reason:
        pytest.skip(reason)
    subject = Subject(workload, SEED, Plan(), TOLERANCES[workload.precision])
    return module.apply(subject, module.Settings(**SETTINGS.get(name, {})))


class Pools:
    """Ranks that last for all tests here, and what they told once."""

    def __init__(self, stack):
        self.stack, self.pools, self.told = stack, {}, {}

    def call(self, function, workload, plan, **arguments):
        """Of `on_rank`, or of the module named before a colon."""
        function = function if ":" in function else f"{on_rank.__name__}:{function}"
        key = json.dumps([function, asdict(workload), asdict(plan), arguments])
        if key not in self.told:
            pool = self.pool(workload.ranks)
            pool.call(f"{on_rank.__name__}:compiled", COMPILE_S, plan=asdict(plan))
            given = {"workload": asdict(workload), "plan": asdict(plan), "seed": SEED}
            self.told[key] = pool.call(function, **given, **arguments)
        return self.told[key]

    def losses(self, function, workload, plan, **arguments):
        """Of each step, the mean over ranks."""
        told = self.call(function, workload, plan, **arguments)
        each = [one["loss"] if isinstance(one, dict) else one for one in told]
        return [fmean(step) for step in zip(*each, strict=True)]

    def pool(self, count):
        if count not in self.pools or len(self.pools[count]) == 0:
            common = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "OMP_NUM_THREADS": "1"}
            places = [Place((), {**common, "LOCAL_RANK": str(number)}) for number in range(count)]
            self.pools[count] = self.stack.enter_context(Pool(places, "127.0.0.1", timeout_s=200))
        return self.pools[count]


@pytest.fixture(scope="module")
def pools():
    with ExitStack() as stack:
        yield Pools(stack)
