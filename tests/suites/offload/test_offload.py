"""The offload suite around its engines: who updates what, where ranks meet, files on a disk, a whole cell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from offload_ranks import COUNT, SEED, WORKLOAD, placed, pools, subject_of

import suites.offload.suite as offload
from harness.config.code_fingerprint import ROOT
from harness.instruments.distributed.deepspeed_engine import missing
from harness.instruments.distributed.rank_pool import RankFailed
from harness.records import Reading, Unavailable
from suites.offload import ranks
from suites.offload.ranks import Ranks
from suites.offload.subject import DISK, MemoryPlacement
from suites.training.declared import ZeROSettings
from suites.training.host_memory import HostMemory, Resources
from suites.training.shared_trainers import backend_of
from suites.training.techniques.zero import Offload

__all__ = ["pools"]


def test_ranks_meet_over_nccl_with_a_gpu_each_and_over_gloo_without_any(monkeypatch):
    for gpus, count, backend in ((0, 5, "gloo"), (2, 2, "nccl"), (4, 1, "nccl")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert backend_of(count) == backend
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(Unavailable, match="2 ranks need a GPU each, and there are 1"):
        backend_of(2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_cannot_be_run_is_unavailable():
    for change, reason in (
        ({"device": "cuda"}, "for a GPU"),
        ({"num_attention_heads": 64, "num_key_value_heads": 64}, "an even head size, not 1"),
        ({"offload_dir": "/nonexistent"}, "offload_dir=/nonexistent: expected a folder"),
        ({"offload_dir": __file__}, "expected a folder that can be written"),
    ):
        with pytest.raises(Unavailable, match=reason):
            offload.build(asdict(replace(WORKLOAD, **change)), SEED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranks_that_share_a_core_and_searches_are_not_timed(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    search = {"dp_size": 1, "device_memory_budget_B": 1e6}
    changes = [{"dp_size": 1}, {"dp_size": 2}, {"dp_size": 3}, search]
    sessions = [offload.prepare(subject_of("baseline", replace(WORKLOAD, **one))) for one in changes]
    assert list(map(offload.timed, sessions)) == [True, True, False, False]


def test_readings_of_a_cell_are_those_of_its_step_and_leave_no_file(ranks_forked, tmp_path):
    workload = replace(WORKLOAD, dp_size=1, offload_dir=str(tmp_path))
    session = offload.prepare(subject_of("host_update", workload))
    try:
        offload.check(session)
        once, timed = list(offload.read_once(session)), list(offload.sample(session))
    finally:
        offload.close(session)
    values = {}
    for one in (one for one in once + timed if isinstance(one, Reading)):
        values.setdefault((one.metric, one.method), []).append(one.value)
    tokens = 2 * 16
    assert values["parameters", ""] == [COUNT]
    assert values["tokens_per_step", ""] == [tokens]
    assert values["throughput", ""][0] * values["time", ""][0] == pytest.approx(tokens)
    assert len(values["loss_by_step", ""]) == 8
    assert values["loss", ""] == values["loss_by_step", ""][-1:]
    assert values["moved", ""] == [2 * 4 * COUNT]
    assert values["moved_per_parameter", ""] == [2 * 4]
    assert values["max_error", "plain PyTorch"][0] < 1e-5
    measured_B = max(values["peak_memory", "allocator"])
    (estimate_B,), (error,) = values["peak_memory", "ZeRO formula"], values["peak_error", "ZeRO formula"]
    assert error == pytest.approx(estimate_B / measured_B - 1)
    assert list(tmp_path.iterdir()) == []


ON_DISK = MemoryPlacement("deepspeed", 3, DISK, DISK)
WIDE = replace(WORKLOAD, hidden_size=256, intermediate_size=688, num_hidden_layers=2, dp_size=1)
"""Deepspeed swaps from a MiB a tensor on."""


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
    killed = Ranks(workload, exact=True)
    try:
        with pytest.raises((MemoryError, RankFailed)):
            killed.call("train_within_budget", placed(workload, ON_DISK), budget_B=1, steps=2)
    finally:
        killed.close()
    assert list(tmp_path.iterdir()) == []


MAKE = "import sys, time; from suites.offload import ranks; print(ranks.make(sys.argv[1]), flush=True)"


def made_by_another(folder: Path) -> tuple[Path, subprocess.Popen[str]]:
    command = [sys.executable, "-c", f"{MAKE}; time.sleep(600)", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Path(process.stdout.readline().strip()), process


def test_what_a_kill_left_is_cleared_by_the_next_and_what_lives_is_not(tmp_path):
    left, killed = made_by_another(tmp_path)
    (left / "zero_stage_3").mkdir()
    (left / "zero_stage_3" / "some.swp").write_bytes(b"x" * 100)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    living, process = made_by_another(tmp_path)
    try:
        assert not left.exists()
        ours = Path(ranks.make(str(tmp_path)))
        assert living.is_dir()
        assert ours.is_dir()
        assert ours != living
        ranks.remove(str(ours))
        assert not ours.exists()
    finally:
        process.kill()
        process.wait()


def test_a_reused_process_number_does_not_save_a_folder_and_other_names_are_left_alone(tmp_path):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    stale = tmp_path / f"harness-swap-{boot}-{os.getpid()}-1-abc"
    names = ("harness-swap-", "harness-swap-mine", "harness-swap-1-x-y", "harness-swap-0-1-1-x", "other")
    for folder in (stale, *(tmp_path / name for name in names)):
        folder.mkdir()
    ranks.remove(ranks.make(str(tmp_path)))
    assert {one.name for one in tmp_path.iterdir()} == set(names)


@pytest.mark.parametrize("root", [True, False])
def test_a_disk_that_fills_in_mid_step_is_reported_in_one_line(monkeypatch, tmp_path, root):
    """What is kept for root counts for root alone."""
    if reason := missing("async_io"):
        pytest.skip(reason)
    cpu = torch.device("cpu")
    settings = ZeROSettings(stage=3, optimizer="disk")
    swapped = Offload(settings, Resources(cpu, HostMemory(cpu), str(tmp_path)))
    swapped.refuse_full_disk()
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    disk = SimpleNamespace(f_bfree=326 if root else 9999, f_bavail=9999 if root else 326, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    with pytest.raises(Unavailable, match=r"^the disk of its swap files is full: 1335296 B are left$"):
        swapped.refuse_full_disk()
