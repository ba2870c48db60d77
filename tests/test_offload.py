"""The offload suite's engines on real ranks: right, against a loop written by hand in float64; what they move
and hold, against sums by hand; and that a wrong one is caught."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
import torch

import suites.offload as offload
from harness.instruments.deepspeed_operators import missing
from harness.instruments.ranks import Place, Pool, RankFailed
from harness.records import Unavailable, WrongResult
from harness.source_digest import ROOT
from suites import text
from suites.model import Transformer
from suites.offload import delayed_update, on_rank
from suites.offload.against_plain import SCALE_STEPS, TOLERANCES, check_losses, for_scale, plain_losses
from suites.offload.engines.host_update import owners_of
from suites.offload.ranks import COMPILE_S, Ranks, backend_of
from suites.offload.subject import DISK, Plan, Subject, Workload

HERE = Path(__file__).parent
SEED = 3
STEPS = 6

WORKLOAD = Workload(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    ffn=176,
    vocab=64,
    batch=2,
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
    """The arm's subject; skips where this machine lacks what it needs."""
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


# Right, against float64.


@cache
def by_hand(ranks, steps, ordinary=None):
    """Losses of AdamW as its paper has it, in float64, explicit attention, all ranks' batches at once.

    From step `ordinary` on each update comes one step late, after the next step's gradients.
    """
    torch.manual_seed(SEED)
    model = Transformer(WORKLOAD.shape, attention="explicit").double()
    parameters = list(model.parameters())
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
    losses, waiting, updates = [], None, 0

    def update(gradients):
        nonlocal updates
        updates += 1
        with torch.no_grad():
            for parameter, gradient, (first, second) in zip(parameters, gradients, moments, strict=True):
                first.mul_(0.9).add_(0.1 * gradient)
                second.mul_(0.999).add_(0.001 * gradient**2)
                mean, deviation = first / (1 - 0.9**updates), (second / (1 - 0.999**updates)).sqrt()
                parameter.mul_(1 - 3e-3 * 0.1)
                parameter.sub_(3e-3 * mean / (deviation + 1e-8))

    for step in range(steps):
        batches = [text.batch(64, (2, 16), SEED, step * ranks + rank) for rank in range(ranks)]
        loss = sum(model(*batch) for batch in batches) / ranks
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(float(loss))
        if ordinary is None or step < ordinary:
            update(gradients)
        else:
            if waiting is not None:
                update(waiting)
            waiting = gradients
    return losses


@pytest.mark.parametrize("ranks", [1, 2])
def test_plain_pytorch_is_as_by_hand(ranks):
    workload = replace(WORKLOAD, ranks=ranks)
    assert plain_losses(workload, SEED, STEPS) == pytest.approx(by_hand(ranks, STEPS), rel=1e-4)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ARMS)
def test_the_losses_are_those_by_hand(pools, name, ranks):
    workload = replace(WORKLOAD, ranks=ranks)
    losses = pools.losses("course", workload, subject_of(name, workload).plan, steps=STEPS)
    assert losses == pytest.approx(by_hand(ranks, STEPS), rel=1e-4)


@pytest.mark.parametrize("name", ARMS)
def test_mixed_precision_rounds_and_no_more(pools, name):
    losses = pools.losses("course", BF16, subject_of(name, BF16).plan, steps=STEPS)
    assert losses == pytest.approx(by_hand(2, STEPS), rel=1e-2)
    assert losses != pytest.approx(by_hand(2, STEPS), rel=1e-7)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("after", [0, 3])
def test_a_delayed_update_is_as_by_hand(pools, ranks, after):
    workload = replace(WORKLOAD, ranks=ranks)
    subject = delayed_update.apply(subject_of("baseline", workload), delayed_update.Settings(after))
    losses = pools.losses("course", workload, subject.plan, steps=8)
    assert losses == pytest.approx(by_hand(ranks, 8, after), rel=1e-4)
    undelayed = by_hand(ranks, 8)
    assert losses[: after + 1] == pytest.approx(undelayed[: after + 1], rel=1e-4)
    assert losses != pytest.approx(undelayed, rel=1e-3)


def test_with_the_delay_it_learns(pools):
    subject = delayed_update.apply(subject_of("baseline"), delayed_update.Settings(3))
    losses = pools.losses("course", WORKLOAD, subject.plan, steps=60)
    assert check_losses(subject, losses) is None
    assert fmean(losses[-10:]) < 0.9 * losses[0]


# A wrong one.


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("baseline", "ddp reduces nothing"),
        ("baseline", "the head is frozen"),
        ("baseline", "moments are forgotten"),
        ("baseline", "batches repeat"),
        ("host_update", "host_update reduces nothing"),
        ("host_update", "host_update keeps parameters"),
    ],
)
def test_a_wrong_engine_is_caught(pools, name, wrong):
    subject = subject_of(name)
    right = pools.losses("offload_on_rank:spoilt", WORKLOAD, subject.plan, steps=12, wrong="")
    assert check_losses(subject, right) < 1e-5
    losses = pools.losses("offload_on_rank:spoilt", WORKLOAD, subject.plan, steps=12, wrong=wrong)
    with pytest.raises(WrongResult, match=r"loss of step \d+ is .* plain PyTorch's .*: off by"):
        check_losses(subject, losses)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["baseline", "host_update"])
def test_a_sum_in_place_of_a_mean_is_caught(pools, name, precision):
    """Which AdamW hides."""
    subject = for_scale(subject_of(name, replace(WORKLOAD, precision=precision)))
    one = (subject.workload, subject.plan)
    right = pools.losses("offload_on_rank:spoilt", *one, steps=SCALE_STEPS, wrong="")
    assert check_losses(subject, right) < subject.tolerance / 3
    summed = pools.losses("offload_on_rank:spoilt", *one, steps=SCALE_STEPS, wrong="gradients are summed")
    with pytest.raises(WrongResult, match="loss of step"):
        check_losses(subject, summed)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEPSPEED)
def test_every_engine_follows_the_scale_of_gradients(pools, name):
    subject = for_scale(subject_of(name, BF16))
    losses = pools.losses("course", subject.workload, subject.plan, steps=SCALE_STEPS)
    assert check_losses(subject, losses) < subject.tolerance / 3


@pytest.mark.parametrize("rate", [6e-3, 2e-3])
def test_another_learning_rate_is_caught(pools, rate):
    subject = subject_of("baseline")
    other = replace(WORKLOAD, learning_rate=rate)
    losses = pools.losses("course", other, subject.plan, steps=12)
    with pytest.raises(WrongResult, match="loss of step"):
        check_losses(subject, losses)


@pytest.mark.parametrize("tolerance", [1e-3, None])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_wrong(bad, tolerance):
    subject = Subject(WORKLOAD, SEED, Plan(), tolerance)
    with pytest.raises(WrongResult, match=f"losses: 4, {bad}"):
        check_losses(subject, [4.0, bad, 3.0])


@pytest.mark.parametrize("losses", [[4.0] * 8, [4, 4, 3, 3, 3, 3, 4, 4], [3, 3, 3, 3, 3, 3, 3, 5]])
def test_what_does_not_learn_is_wrong(losses):
    with pytest.raises(WrongResult, match="does not learn"):
        check_losses(Subject(WORKLOAD, SEED, Plan(), None), losses)


# What is moved and held; of two ranks together, in bytes a parameter.

UP_AND_DOWN = {  # up, down: in bf16, in fp32
    "baseline": ((0, 0), (0, 0)),
    "fsdp2": ((0, 0), (0, 0)),
    "zero1": ((0, 0), (0, 0)),
    "zero2": ((0, 0), (0, 0)),
    "zero3": ((0, 0), (0, 0)),
    "host_update": ((2, 2), (4, 4)),  # the least: parameters up, gradients down
    "zero1_offload": ((2, 4), (4, 4)),  # gradients are made fp32 before they go
    "zero2_offload": ((2, 4), (4, 4)),
    # Gradients go down as they are, up again, are widened, and go down as fp32.
    "zero3_offload": ((2 + 2, 2 + 4), (4 + 4, 4 + 4)),
    # fp32 shards up for the forward pass, those of blocks again for the backward pass; fp32 gradients down.
    "fsdp2_offload": ((4 * (COUNT + BLOCKS) / COUNT, 4),) * 2,
}
EXACT = ("baseline", "fsdp2", "host_update", "fsdp2_offload")  # deepspeed moves a number or two beside


@pytest.fixture
def steady(pools):
    """What ranks told of a steady step."""

    def told(name, workload=BF16):
        return pools.call("footprint", workload, subject_of(name, workload).plan)

    return told


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", UP_AND_DOWN)
def test_bytes_moved_are_those_by_hand(steady, name, precision):
    told = steady(name, replace(WORKLOAD, precision=precision))
    moved = tuple(sum(one[way] for one in told) / COUNT for way in ("up_B", "down_B"))
    expected = UP_AND_DOWN[name][precision == "fp32"]
    slack = 1e-9 if name in EXACT else 2e-3
    assert moved == pytest.approx(expected, rel=slack, abs=slack)


def test_the_least_traffic_to_the_byte_and_each_rank_its_share(steady):
    told = steady("host_update")
    assert sum(one["up_B"] for one in told) == sum(one["down_B"] for one in told) == 2 * COUNT
    for one in told:
        assert one["up_B"] == one["down_B"]
        assert one["up_B"] == pytest.approx(COUNT, rel=0.1)


@pytest.mark.slow
def test_parameters_that_lie_on_the_host_are_fetched_for_each_pass(steady):
    """Gradients up once more (2); parameters for the forward pass (2), and for the backward pass those that
    it does not find there still."""
    told = steady("zero3_offload_params")
    assert 4 * COUNT <= sum(one["up_B"] for one in told) <= 6.01 * COUNT
    assert sum(one["down_B"] for one in told) == pytest.approx(6 * COUNT, rel=2e-3)


ON_HOST = {  # in bf16, in fp32
    "baseline": (0, 0),
    "host_update": (2 + 2 + 4 + 4 + 8, 4 + 4 + 4 + 4 + 8),  # gradient and parameter to send; fp32; moments
    "fsdp2_offload": (16, 16),  # fp32 parameters, gradients, moments
    "zero3_offload": (2 + 4 + 4 + 8, 4 + 4 + 4 + 8),  # gradients as they came; fp32; moments
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ON_HOST)
def test_bytes_on_the_host_are_those_by_hand(steady, name, precision):
    told = steady(name, replace(WORKLOAD, precision=precision))
    held = sum(one["host_B"] for one in told) / COUNT
    assert held == pytest.approx(ON_HOST[name][precision == "fp32"], rel=1e-9 if name in EXACT else 2e-3)


ON_DEVICE = {  # in bf16: parameters, gradients, states, over two ranks where a stage shards them
    "baseline": 4 + 4 + 8,
    "zero1": 2 + 2 + 12 / 2,
    "zero2": 2 + (2 + 12) / 2,
    "zero3": (2 + 2 + 12) / 2,
    "fsdp2": (4 + 4 + 8) / 2,
    "zero1_offload": 2 + 2,
    "zero2_offload": 2 + 2 / 2,
    "zero3_offload": 2 / 2,
    "host_update": 2,
    "fsdp2_offload": 0,
    "zero3_offload_params": 0,
}
APART = 5
"""Bytes a parameter between two formulas, so that buffers and activations of a tiny model change no order."""


@pytest.mark.slow
def test_peaks_fall_as_the_formulas_do(steady):
    reason = missing("cpu_adam")
    if reason:
        pytest.skip(reason)
    peaks = {name: max(max(one["peaks_B"]) for one in steady(name)) / COUNT for name in ON_DEVICE}
    for name, least in ON_DEVICE.items():
        assert peaks[name] >= least, name
    compared = 0
    for one, other in combinations(ON_DEVICE, 2):
        if abs(ON_DEVICE[one] - ON_DEVICE[other]) >= APART:
            compared += 1
            assert (peaks[one] > peaks[other]) == (ON_DEVICE[one] > ON_DEVICE[other]), (one, other, peaks)
    assert compared > 30


# Who updates what, where ranks meet, what may not be.


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_each_parameter_has_one_owner_and_shares_are_even(ranks):
    parameters = list(Transformer(WORKLOAD.shape).parameters())
    owners = owners_of(parameters, ranks)
    assert list(owners) == parameters
    held = [sum(one.numel() for one, owner in owners.items() if owner == rank) for rank in range(ranks)]
    assert sum(held) == COUNT
    assert max(held) - min(held) <= max(one.numel() for one in parameters)


@pytest.mark.parametrize(("seen", "ranks", "backend"), [(0, 5, "gloo"), (2, 2, "nccl"), (4, 1, "nccl")])
def test_where_ranks_meet(monkeypatch, seen, ranks, backend):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    assert backend_of(ranks) == backend


def test_too_few_gpus_are_unavailable(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(Unavailable, match="2 ranks need a GPU each, and there are 1"):
        backend_of(2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu": True}, "for a GPU"),
        ({"heads": 64, "kv_heads": 64}, "1 elements are odd"),
        ({"folder": "/nonexistent"}, "/nonexistent is no folder that can be written"),
        ({"folder": str(HERE / "conftest.py")}, "no folder that can be written"),
    ],
)
def test_what_cannot_be_run_is_unavailable_in_one_line(change, said):
    with pytest.raises(Unavailable, match=said) as raised:
        offload.build(asdict(replace(WORKLOAD, **change)), SEED)
    assert "\n" not in str(raised.value)


# The disk.

ON_DISK = Plan("deepspeed", 3, DISK, DISK)
WIDE = replace(WORKLOAD, hidden=256, ffn=688, layers=2, ranks=1)  # deepspeed swaps from a MiB a tensor on


def needs_async_io():
    reason = missing("async_io") or missing("cpu_adam")
    if reason:
        pytest.skip(reason)


@pytest.mark.slow
def test_states_lie_in_files_that_go_with_the_engine(pools, tmp_path):
    needs_async_io()
    workload = replace(WIDE, folder=str(tmp_path))
    ((stands_B, closed_B),) = pools.call("offload_on_rank:swapped", workload, ON_DISK)
    assert stands_B > 8 * workload.shape.parameters
    assert closed_B == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_files_of_ranks_that_were_killed_go_too(tmp_path):
    needs_async_io()
    workload = replace(WIDE, folder=str(tmp_path))
    ranks = Ranks(workload, SEED, exact=True)
    try:
        with pytest.raises((MemoryError, RankFailed)):
            ranks.call("within", workload, ON_DISK, budget_B=1, steps=2)
    finally:
        ranks.close()
    assert list(tmp_path.iterdir()) == []


# The command.


@pytest.mark.slow
def test_cells_through_the_harness(tmp_path):
    folder = tmp_path / "swap"
    folder.mkdir()
    tiny = (
        "hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 64, batch: 2, seq_len: 16, precision: fp32, "
        f"ranks: 2, loss_steps: 8, folder: {folder}"
    )
    small = (
        "hidden: 256, heads: 4, kv_heads: 4, ffn: 688, vocab: 64, batch: 2, seq_len: 16, precision: fp32, "
        "ranks: 1, budget_B: 1.0"
    )
    words = [
        "suite=offload",
        f"+suite.workloads.tiny={{layers: 2, {tiny}}}",
        f"+suite.workloads.tight={{layers: 8, {small}}}",
        "workloads=[tiny,tight]",
        "only=[baseline,host_update]",
        f"out={tmp_path / 'out'}",
    ]
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out/records.jsonl").read_text().splitlines()
    records = {(one["cell"]["workload"], one["cell"]["optimization"]): one for one in map(json.loads, lines)}
    assert len(records) == 4
    for name in ("baseline", "host_update"):
        one = records["tiny", name]
        assert one["status"] == "ok", one["reason"]
        values = {(metric, method): list(v) for metric, _, _, method, v in one["measurements"]}
        assert values["parameters", ""] == [COUNT]
        tokens = 2 * 2 * 16
        assert values["tokens_per_step", ""] == [tokens]
        pairs = zip(values["throughput", ""], values["time", ""], strict=True)
        assert all(rate * time_s == pytest.approx(tokens) for rate, time_s in pairs)
        assert values["moved", ""] == [2 * 4 * COUNT if name == "host_update" else 0]
        assert values["max_error", "plain PyTorch"][0] < 1e-5
        one = records["tight", name]
        assert one["status"] == "out_of_memory"
        assert "1 B a rank do not hold the training of one layer" in one["reason"]
        assert "\n" not in one["reason"]
    assert (tmp_path / "out/report.md").exists()
    assert "out of memory" in (tmp_path / "out/report.md").read_text()
    assert list(folder.iterdir()) == []
