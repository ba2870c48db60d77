"""The offload suite's variants on real ranks that last for a file's tests, shared by several test files."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import fmean

import pytest
from places import PYTHONPATH
from variants import applied

from harness.config.run import load
from harness.instruments.distributed.deepspeed_engine import missing
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from suites.offload import on_rank, ranks
from suites.offload.subject import DEVICE, DISK, HOST, Managed, baseline
from suites.offload.workload import Workload
from suites.training import on_rank as training_on_rank
from suites.training.shared_trainers import backend_of
from suites.training.techniques import build_step

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

VARIANTS = {variant.name: variant for variant in load(["suite=offload"])[0].variants}


def subject_of(name, workload=WORKLOAD):
    """The variant's subject, by its YAML; skips where this machine lacks what it needs."""
    if name == "baseline":
        return baseline(workload, SEED)
    subject = applied("offload", VARIANTS[name], baseline(workload, SEED))
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
    zero = {name: getattr(placement, name) for name in ("stage", "optimizer", "parameters", "ratio")}
    zero["buckets"] = "block"
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
    """Ranks that last for all tests here, and what they returned once."""

    def __init__(self, stack):
        self.stack, self.pools, self.returned = stack, {}, {}

    def call(self, function, subject, **arguments):
        """Of `on_rank`, or of the module named before a colon."""
        function = function if ":" in function else f"{on_rank.__name__}:{function}"
        step, folder = subject.step.described, subject.workload.offload_dir
        key = json.dumps([function, step, folder, arguments])
        if key not in self.returned:
            pool = self.pool(subject.step.workload.dp_size)
            pool.call(f"{on_rank.__name__}:compile_operators", ranks.COMPILE_S, step=step)
            self.returned[key] = pool.call(function, step=step, folder=folder, **arguments)
        return self.returned[key]

    def losses(self, function, subject, **arguments):
        """Of each step, the mean over ranks."""
        returned = self.call(function, subject, **arguments)
        each = [one["loss"] if isinstance(one, dict) else one for one in returned]
        return [fmean(step) for step in zip(*each, strict=True)]

    def pool(self, count):
        if count not in self.pools or len(self.pools[count]) == 0:
            common = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
            places = [RankLocation((), {**common, "LOCAL_RANK": str(number)}) for number in range(count)]
            pool = RankPool(places, "127.0.0.1", backend_of(count), timeout_s=200)
            self.pools[count] = self.stack.enter_context(pool)
            self.pools[count].call(f"{training_on_rank.__name__}:use_ring")
        return self.pools[count]


@pytest.fixture(scope="module")
def pools():
    with ExitStack() as stack:
        yield Pools(stack)


class Lent:
    """A pool for one cell, which does not end with it."""

    def __init__(self, pool):
        self.pool, self.call = pool, pool.call

    def __len__(self):
        return len(self.pool)

    def close(self):
        pass


@contextmanager
def lasting_ranks(patch):
    """Within this context all cells of the offload suite with as many ranks have the same ones."""
    with ExitStack() as stack:
        pools = Pools(stack)

        def lent(places, *_):
            pool = pools.pool(len(places))
            pool.call("offload_on_rank:settle")
            return Lent(pool)

        patch.setattr(ranks, "RankPool", lent)
        yield
