"""A cell's files go with it; those of a cell that was killed go with the next, and nobody else's do."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.config.code_fingerprint import ROOT
from harness.instruments.distributed.deepspeed_ops import missing
from harness.records import Unavailable
from suites.offload import ranks
from suites.training.offload.deepspeed_offload import Offload
from suites.training.offload.host_memory import HostMemory
from suites.training.resources import Resources

MAKE = "import sys, time; from suites.offload import ranks; print(ranks.make(sys.argv[1]), flush=True)"


def made_by_another(folder: Path, then: str) -> tuple[Path, "subprocess.Popen[str]"]:
    command = [sys.executable, "-c", f"{MAKE}; {then}", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Path(process.stdout.readline().strip()), process


def test_what_a_kill_left_is_cleared_by_the_next_and_what_lives_is_not(tmp_path):
    left, killed = made_by_another(tmp_path, "time.sleep(600)")
    (left / "zero_stage_3").mkdir()
    (left / "zero_stage_3" / "some.swp").write_bytes(b"x" * 100)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    living, process = made_by_another(tmp_path, "time.sleep(600)")
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


def test_a_number_that_was_given_again_does_not_save_a_folder(tmp_path):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    other = tmp_path / f"harness-swap-{boot}-{os.getpid()}-1-abc"
    other.mkdir()
    ranks.remove(ranks.make(str(tmp_path)))
    assert not other.exists()


def test_names_of_another_form_are_somebody_elses(tmp_path):
    names = ("harness-swap-", "harness-swap-mine", "harness-swap-1-x-y", "harness-swap-0-1-1-x", "other")
    kept = [tmp_path / name for name in names]
    for one in kept:
        one.mkdir()
    ranks.remove(ranks.make(str(tmp_path)))
    assert all(one.is_dir() for one in kept)


@pytest.mark.parametrize("root", [True, False])
def test_a_disk_that_fills_in_mid_step_is_reported_in_one_line(monkeypatch, tmp_path, root):
    """What is kept for root counts for root alone."""
    if reason := missing("async_io"):
        pytest.skip(reason)
    cpu = torch.device("cpu")
    offload = Offload(3, "disk", "device", 1.0, Resources(cpu, HostMemory(cpu), str(tmp_path)))
    offload.refuse_full_disk()
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    disk = SimpleNamespace(f_bfree=326 if root else 9999, f_bavail=9999 if root else 326, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    with pytest.raises(Unavailable, match=r"^the disk of its swap files is full: 1335296 B are left$"):
        offload.refuse_full_disk()
