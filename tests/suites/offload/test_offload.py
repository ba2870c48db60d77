"""The offload suite around its engines: who updates what, where ranks meet, files on a disk, the command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from offload_ranks import COUNT, SEED, WORKLOAD, placed, pools, subject_of

import suites.offload.suite as offload
from harness.config.code_fingerprint import ROOT
from harness.instruments.distributed.deepspeed_engine import missing
from harness.instruments.distributed.rank_pool import RankFailed
from harness.records import Unavailable
from suites.offload.ranks import Ranks
from suites.offload.subject import DISK, MemoryPlacement
from suites.training.models.model import Transformer
from suites.training.shared_trainers import backend_of
from suites.training.techniques.host_update import owners_of

__all__ = ["pools"]


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
        ({"device": "cuda"}, "for a GPU"),
        ({"num_attention_heads": 64, "num_key_value_heads": 64}, "an even head size, not 1"),
        ({"offload_dir": "/nonexistent"}, "offload_dir=/nonexistent: expected a folder that can be written"),
        ({"offload_dir": __file__}, "expected a folder that can be written"),
    ],
)
def test_what_cannot_be_run_is_unavailable_in_one_line(change, said):
    with pytest.raises(Unavailable, match=said) as raised:
        offload.build(asdict(replace(WORKLOAD, **change)), SEED)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranks_that_share_a_core_are_not_timed(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    sessions = [offload.prepare(subject_of("baseline", replace(WORKLOAD, dp_size=n))) for n in (1, 2, 3)]
    assert list(map(offload.timed, sessions)) == [True, True, False]
    search = replace(WORKLOAD, device_memory_budget_B=1e6, dp_size=1)
    assert not offload.timed(offload.prepare(subject_of("baseline", search)))


# The disk.

ON_DISK = MemoryPlacement("deepspeed", 3, DISK, DISK)
WIDE = replace(
    WORKLOAD, hidden_size=256, intermediate_size=688, num_hidden_layers=2, dp_size=1
)  # deepspeed swaps from a MiB a tensor on


def needs_async_io():
    reason = missing("async_io") or missing("cpu_adam")
    if reason:
        pytest.skip(reason)


@pytest.mark.slow
def test_states_lie_in_files_that_go_with_the_engine(pools, tmp_path):
    needs_async_io()
    workload = replace(WIDE, offload_dir=str(tmp_path))
    ((stands_B, closed_B),) = pools.call("offload_on_rank:swapped", placed(workload, ON_DISK))
    assert stands_B > 8 * workload.shape.parameters
    assert closed_B == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_files_of_ranks_that_were_killed_go_too(tmp_path):
    needs_async_io()
    workload = replace(WIDE, offload_dir=str(tmp_path))
    ranks = Ranks(workload, exact=True)
    try:
        with pytest.raises((MemoryError, RankFailed)):
            ranks.call("train_within_budget", placed(workload, ON_DISK), budget_B=1, steps=2)
    finally:
        ranks.close()
    assert list(tmp_path.iterdir()) == []


# The command.


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a busy machine; each cell has its own limit
def test_cells_through_the_harness(tmp_path):
    folder = tmp_path / "swap"
    folder.mkdir()
    fields = (
        "hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 176, "
        "vocab_size: 64, micro_batch_size: 2, seq_len: 16, precision: fp32, "
        f"dp_size: 1, loss_steps: 8, offload_dir: {folder}"
    )
    words = [
        "suite=offload",
        f"+suite.workloads.tiny={{num_hidden_layers: 2, {fields}}}",
        "workloads=[tiny]",
        "only=[host_update]",
        "suite.sampling.rounds=2",
        f"out={tmp_path / 'out'}",
    ]
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out/records.jsonl").read_text().splitlines()
    records = {(one["cell"]["optimization"], one["cell"]["workload"]): one for one in map(json.loads, lines)}
    assert len(records) == len(lines) == 3  # and the baseline again
    tiny = records["host_update", "tiny"]
    assert tiny["status"] == "ok", tiny["reason"]
    values = {(metric, method): list(v) for metric, _, _, method, v in tiny["measurements"]}
    assert values["parameters", ""] == [COUNT]
    tokens = 2 * 16
    assert values["tokens_per_step", ""] == [tokens]
    pairs = zip(values["throughput", ""], values["time", ""], strict=True)
    assert all(rate * time_s == pytest.approx(tokens) for rate, time_s in pairs)
    assert len(values["time", ""]) == 2  # one for each round, of every variant
    assert len(values["loss_by_step", ""]) == 8
    assert values["moved", ""] == [2 * 4 * COUNT]
    assert values["max_error", "plain PyTorch"][0] < 1e-5
    assert (tmp_path / "out/report.md").exists()
    assert list(folder.iterdir()) == []
