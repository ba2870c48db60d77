"""The offload suite's variants on real ranks that last for a file's tests: what several test files share."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from harness.instruments.distributed.deepspeed_ops import missing
from harness.instruments.distributed.rank_pool import Place, Pool
from harness.optimizations import CONF
from suites.offload import on_rank
from suites.offload.ranks import COMPILE_S
from suites.offload.subject import DEVICE, DISK, HOST, Managed, Workload, baseline
from suites.training.techniques import build_step

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
    dp_size=2,
    learning_rate=3e-3,
    loss_steps=8,
)
BF16 = replace(WORKLOAD, precision="bf16")
REST = 2 * 64 * 64 + 64  # embedding and head, last norm
BLOCKS = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64)
COUNT = BLOCKS + REST

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
    """The variant's subject, by its YAML; skips where this machine lacks what it needs."""
    if name == "baseline":
        return baseline(workload, SEED)
    entry = yaml.safe_load((CONF / f"suite/offload/{name}.yaml").read_text())
    techniques = entry.get("techniques") or list(entry["variants"].values())[-1]["techniques"]
    subject = baseline(workload, SEED).with_techniques(techniques)
    skip_without(subject)
    return subject


def skip_without(subject):
    placement = subject.placement
    tiers = (placement.optimizer, placement.parameters)
    if placement.engine != "deepspeed":
        return
    operators = ["cpu_adam"] * (tiers[0] != DEVICE) + ["async_io"] * (DISK in tiers)
    for reason in filter(None, map(missing, operators)):
        pytest.skip(reason)


def placed(workload, placement, seed=SEED):
    """The subject whose memory lies so."""
    subject = baseline(workload, seed)
    if placement.engine == "managed":
        alone = [list(one) for one in subject.step.techniques if one[0] != "ddp"]
        step = build_step(workload.training, alone, seed)
        return replace(subject, step=step, managed=Managed(placement.resident))
    zero = {
        "stage": placement.stage,
        "optimizer": placement.optimizer,
        "parameters": placement.parameters,
        "ratio": placement.ratio,
        "buckets": "block",
    }
    engines = {
        "ddp": [],
        "fsdp2": [{"fsdp2": {"cpu_offload": placement.optimizer == HOST}}],
        "deepspeed": [{"zero": zero}],
        "host_update": ["host_update"],
    }
    activations = {
        "kept": [],
        "recomputed": [{"activation_checkpointing": {"mode": "full"}}],
        "offloaded": [{"activation_offload": {"prefetch": False}}],
        "offloaded_ahead": [{"activation_offload": {"prefetch": True}}],
    }
    return subject.with_techniques([*engines[placement.engine], *activations[placement.activations]])


class Pools:
    """Ranks that last for all tests here, and what they told once."""

    def __init__(self, stack):
        self.stack, self.pools, self.told = stack, {}, {}

    def call(self, function, subject, **arguments):
        """Of `on_rank`, or of the module named before a colon."""
        function = function if ":" in function else f"{on_rank.__name__}:{function}"
        step, folder = subject.step.described, subject.workload.offload_dir
        key = json.dumps([function, step, folder, arguments])
        if key not in self.told:
            pool = self.pool(subject.step.workload.dp_size)
            pool.call(f"{on_rank.__name__}:compile_operators", COMPILE_S, step=step)
            self.told[key] = pool.call(function, step=step, folder=folder, **arguments)
        return self.told[key]

    def losses(self, function, subject, **arguments):
        """Of each step, the mean over ranks."""
        told = self.call(function, subject, **arguments)
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
